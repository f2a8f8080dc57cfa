"""Signs of reward hacking and of divergence: accuracy falls."""

from collections.abc import Mapping, Sequence
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
COLLAPSE = 0.5  # share of the best accuracy below which it has fallen without any component that rises


@dataclass(frozen=True, slots=True, kw_only=True)
class Hacked:
    """A component that rose from the steps of the best accuracy to the last ones, while accuracy fell, or accuracy itself."""

    component: str  # ACCURACY: it collapsed, and no component rose
    best_step: int  # last step of the window with the best accuracy, from 1
    steps: int  # of the run so far
    accuracy: tuple[float, float]  # means of the best window and of the last one
    value: tuple[float, float]  # the component's, over the same steps, before its weight

    def __str__(self) -> str:
        (best, now), (before, after) = self.accuracy, self.value
        fell = f"accuracy fell from {best:.1%} to {now:.1%}"
        between = f"between step {self.best_step} and step {self.steps}"
        if self.component == ACCURACY:
            return f"{fell} {between}: training diverges. Lower training.learning_rate, or read completions"
        return (
            f"the component {self.component} rose from {before:.3g} to {after:.3g} {between}, while {fell}: the policy seems to exploit "
            "it. Read completions, lower its weight, or let it require accuracy (docs/rewards.md)"
        )


def hacked(metrics: Mapping[str, Sequence[float] | Floats]) -> list[Hacked]:
    """Return the components of a run's metrics, [steps] each, that rose while accuracy fell, or accuracy; [] for a short run.

    The window of w steps with the best mean accuracy is compared with the last w steps; a difference counts from 5 standard errors
    sqrt(s1^2 / w + s2^2 / w) on, that of accuracy also only from 0.03 on.
    """
    accuracy = np.asarray(metrics.get(ACCURACY, ()), dtype=np.float64)
    if len(accuracy) < FEWEST_STEPS or np.isnan(accuracy).any():
        return []
    width = min(WINDOW, len(accuracy) // 4)
    means = np.convolve(accuracy, np.full(width, 1 / width), mode="valid")
    best = int(means[:-width].argmax())
    if _change(accuracy, best, width) > -DEVIATIONS or means[best] - means[-1] < LEAST:
        return []
    rising = [
        name
        for name in sorted(metrics)
        if name.startswith(PREFIX) and name != f"{PREFIX}accuracy" and _change(metrics[name], best, width) >= DEVIATIONS
    ]
    collapsed = [ACCURACY] if means[-1] < COLLAPSE * means[best] else []
    return [
        Hacked(
            component=name.removeprefix(PREFIX),
            best_step=best + width,
            steps=len(accuracy),
            accuracy=_ends(accuracy, best, width),
            value=_ends(metrics[name], best, width),
        )
        for name in rising or collapsed
    ]


def _ends(values: Sequence[float] | Floats, best: int, width: int) -> tuple[float, float]:
    return float(np.mean(values[best : best + width])), float(np.mean(values[-width:]))


def _change(values: Sequence[float] | Floats, best: int, width: int) -> float:
    """Return the change of the mean to the last window in standard errors; 0 for none, or a step without the value."""
    before, after = np.asarray(values[best : best + width]), np.asarray(values[-width:])
    difference = float(after.mean() - before.mean())
    error = float(np.sqrt((before.var(ddof=1) + after.var(ddof=1)) / width))
    return difference / max(error, 1e-9) if abs(difference) > 1e-9 else 0.0
