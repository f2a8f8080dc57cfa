"""Signs of reward hacking: a component rises while accuracy falls."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ACCURACY, PREFIX = "reward/accuracy", "reward/component/"
WINDOW = 20  # steps that are averaged, at most a quarter of a run
FEWEST_STEPS = 40
# Standard errors of a difference of two windows. The best window is chosen among all, which alone makes differences of 3.
DEVIATIONS = 5.0
LEAST = 0.03  # of accuracy that is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Hacked:
    """A component that rose from the steps of the best accuracy to the last ones, while accuracy fell."""

    component: str
    best_step: int  # last step of the window with the best accuracy, from 1
    steps: int  # of the run so far
    accuracy: tuple[float, float]  # means of the best window and of the last one
    value: tuple[float, float]  # the component's, over the same steps, before its weight

    def __str__(self) -> str:
        (best, now), (before, after) = self.accuracy, self.value
        return (
            f"the component {self.component} rose from {before:.3g} to {after:.3g} between step {self.best_step} and step "
            f"{self.steps}, while accuracy fell from {best:.1%} to {now:.1%}: the policy seems to exploit it. Read completions, lower its "
            "weight, or let it require accuracy (docs/rewards.md)"
        )


def hacked(metrics: Mapping[str, Sequence[float] | Floats]) -> list[Hacked]:
    """Return the components of a run's metrics, [steps] each, that rose while accuracy fell; [] for a short run.

    The window of w steps with the best mean accuracy is compared with the last w steps; a difference counts from 5 standard errors
    sqrt(s1^2 / w + s2^2 / w) on, that of accuracy also only from 0.03 on.
    """
    accuracy = np.asarray(metrics.get(ACCURACY, ()), dtype=np.float64)
    if len(accuracy) < FEWEST_STEPS or np.isnan(accuracy).any():
        return []
    width = min(WINDOW, len(accuracy) // 4)
    means = np.convolve(accuracy, np.full(width, 1 / width), mode="valid")
    best = int(means[:-width].argmax())
    lost = _change(accuracy, best, width)
    if lost > -DEVIATIONS or means[best] - means[-1] < LEAST:
        return []
    return [*_rising(metrics, accuracy, best, width)]


def _rising(
    metrics: Mapping[str, Sequence[float] | Floats], accuracy: Floats, best: int, width: int
) -> Iterator[Hacked]:
    for name in sorted(metrics):
        values = np.asarray(metrics[name], dtype=np.float64)
        component = name.removeprefix(PREFIX)
        if component in (name, "accuracy") or np.isnan(values).any() or _change(values, best, width) < DEVIATIONS:
            continue
        yield Hacked(
            component=component,
            best_step=best + width,
            steps=len(values),
            accuracy=_ends(accuracy, best, width),
            value=_ends(values, best, width),
        )


def _ends(values: Floats, best: int, width: int) -> tuple[float, float]:
    return float(values[best : best + width].mean()), float(values[-width:].mean())


def _change(values: Floats, best: int, width: int) -> float:
    """Return the change of the mean to the last window in standard errors; 0 for none."""
    before, after = values[best : best + width], values[-width:]
    difference = float(after.mean() - before.mean())
    error = math.sqrt((before.var(ddof=1) + after.var(ddof=1)) / width) if width > 1 else 0.0
    return difference / max(error, 1e-9) if abs(difference) > 1e-9 else 0.0
