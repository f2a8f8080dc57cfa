"""Greedy accuracy on held-out problems over the steps of training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from dagrpo.evaluation.held_out_table import points
from dagrpo.evaluation.outcomes import label_of
from dagrpo.evaluation.statistics import Estimate, wilson
from dagrpo.report import style
from dagrpo.report.figures.parts import Hover, ReportFigure, legend, panels, series, step_axis
from dagrpo.report.format import percent, percent_interval, plural
from dagrpo.report.inputs import Inputs

COLUMNS = 2  # of panels, one for each task
BESIDE = 0.008  # of the axis: how far the points of two seeds lie apart, so that one interval does not hide another


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutCurve:
    """The held-out accuracy of one task."""

    label: str
    split: str  # validation or test
    problems: int
    confidence: float
    seeds: Mapping[int, Mapping[int, Estimate]]  # by seed and step, both rising


def held_out_curves(inputs: Inputs) -> list[HeldOutCurve]:
    """Return the curve of each task, in the report's order; [] if training evaluated nothing."""
    return [curve for task in inputs.tasks if (curve := _curve(inputs, task)) is not None]


def _curve(inputs: Inputs, task: str) -> HeldOutCurve | None:
    points_of_seeds = {
        seed: own
        for seed, table in sorted(inputs.held_out.items())
        if (own := [point for point in points(table.to_pylist()) if point.task == task])
    }
    if not points_of_seeds:
        return None
    first, confidence = next(iter(points_of_seeds.values()))[0], inputs.resampling(task).confidence
    return HeldOutCurve(
        label=label_of(task, oracle=first.oracle),
        split=first.split,
        problems=first.problems,
        confidence=confidence,
        seeds={
            seed: {point.step: wilson(point.right, point.problems, confidence) for point in own}
            for seed, own in points_of_seeds.items()
        },
    )


def held_out_accuracy(inputs: Inputs) -> ReportFigure | None:
    """Draw a panel for each task and a line for each seed; intervals are a band for one seed, bars for several.

    None if training evaluated nothing.
    """
    curves = held_out_curves(inputs)
    if not curves:
        return None
    figure, grid = panels(len(curves), min(len(curves), COLUMNS), 2.3)
    hovers: list[Hover] = []
    for axes, curve in zip(grid, curves, strict=True):
        hovers += _panel(axes, curve)
    seeds = sorted({seed for curve in curves for seed in curve.seeds})
    if len(seeds) > 1:
        legend(figure, [(f"seed {seed}", series(row), "") for row, seed in enumerate(seeds)])
    return ReportFigure(
        name="held_out_accuracy",
        figure=figure,
        title="Held-out problems during training",
        description="; ".join(_course(curve) for curve in curves) + ".",
        caption=_caption(curves),
        hovers=hovers,
    )


def _panel(axes: Axes, curve: HeldOutCurve) -> list[Hover]:
    alone = len(curve.seeds) == 1
    last = max(step for estimates in curve.seeds.values() for step in estimates)
    for row, estimates in enumerate(curve.seeds.values()):
        beside = BESIDE * last * (row - (len(curve.seeds) - 1) / 2)
        _line(axes, estimates, colour=style.TRAINED if alone else series(row), alone=alone, beside=beside)
    axes.set_title(f"{curve.label}, {plural(curve.problems, 'problem')} ({curve.split} split)")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    step_axis(axes)
    return list(_hovers_of_steps(axes, curve))


def _line(axes: Axes, estimates: Mapping[int, Estimate], *, colour: str, alone: bool, beside: float) -> None:
    steps, values = [step + beside for step in estimates], [each.value for each in estimates.values()]
    low, high = ([getattr(each, end) for each in estimates.values()] for end in ("low", "high"))
    axes.plot(steps, values, color=colour, marker=".")
    if alone:
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    else:
        axes.vlines(steps, low, high, color=colour, linewidth=0.9, alpha=0.5)


def _hovers_of_steps(axes: Axes, curve: HeldOutCurve) -> Iterator[Hover]:
    """Yield a hover with the values of each step, from half-way to the step before to half-way to the next."""
    steps = sorted({step for estimates in curve.seeds.values() for step in estimates})
    for place, step in enumerate(steps):
        before, after = steps[max(place - 1, 0)], steps[min(place + 1, len(steps) - 1)]
        values = ", ".join(
            f"{f'seed {seed} ' if len(curve.seeds) > 1 else ''}{percent(each.value)} ({percent_interval(each)})"
            for seed, estimates in curve.seeds.items()
            if (each := estimates.get(step))
        )
        yield Hover(axes=axes, text=f"after step {step}: {values}", x=((before + step) / 2, (step + after) / 2))


def _course(curve: HeldOutCurve) -> str:
    ends = [(*estimates.values(),) for estimates in curve.seeds.values()]
    first, last = (sum(each[place].value for each in ends) / len(ends) for place in (0, -1))
    return f"{curve.label}: {percent(first)} before the first step, {percent(last)} after the last"


def _caption(curves: Sequence[HeldOutCurve]) -> str:
    interval = (
        f"Greedy accuracy, on the same problems at each step, with its {100 * curves[0].confidence:g}% interval over the choice of "
        "problems (Wilson). It selected nothing: the trained policy is that of the last step."
    )
    if all(curve.split != "test" for curve in curves):
        return interval
    return (
        f"{interval} The scores above use the same test split: if this curve guides a choice, such as the number of steps or the "
        "learning rate, that choice is fitted to the test, and its score is too optimistic."
    )
