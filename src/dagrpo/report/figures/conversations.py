"""Figures of turns and calls, over training and in the evaluation."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from dagrpo.report import style
from dagrpo.report.conversations import Shares
from dagrpo.report.curves import Curves
from dagrpo.report.figures.parts import ReportFigure, curve_in_words, legend, metric_curve, recorded_of, seed_legend
from dagrpo.report.inputs import VARIANTS, Variant
from dagrpo.report.svg import Hover

BAR = 0.36


def turns_and_calls(curves: Curves, window: int) -> ReportFigure | None:
    """Draw turns and calls over steps; None if training recorded none."""
    metrics = recorded_of("turns_and_calls", curves)
    if not metrics:
        return None
    rows = -(-len(metrics) // 2)
    figure = style.new_figure(1.9 * rows + 0.4)
    grid = figure.subplots(rows, 2, squeeze=False).ravel()
    hovers: list[Hover] = []
    for axes, metric in zip(grid, metrics, strict=False):
        hovers += metric_curve(axes, curves, metric, window)
        axes.set_ylim(bottom=0)
        if metric.is_share:
            axes.set_ylim(0, 1.04)
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for axes in grid[len(metrics) :]:
        axes.set_axis_off()
    seed_legend(figure, curves)
    last = ", ".join(f"{metric.label.lower()} {curves[metric.name][:, -1].mean():.2f}" for metric in metrics)
    return ReportFigure(
        name="turns_and_calls",
        figure=figure,
        title="Turns and calls in training",
        description=f"In the last step: {last}.",
        caption=f"{curve_in_words(curves, window)} Means over the trajectories of the update.",
        hovers=hovers,
    )


def call_shares(shares: Sequence[Shares]) -> ReportFigure | None:
    """Draw two panels per task, outcomes of calls and of trajectories; None if no task has any."""
    if not shares:
        return None
    heights = [max(len(_names(each.statuses)), len(_names(each.ends)), 2) for each in shares]
    figure = style.new_figure(0.3 * sum(heights) + 0.55 * len(shares) + 0.45)
    grid = figure.subplots(len(shares), 2, squeeze=False, height_ratios=heights)
    hovers: list[Hover] = []
    for row, each in zip(grid, shares, strict=True):
        of_task = f", {each.task}" if len(shares) > 1 else ""
        hovers += _bars(row[0], f"Calls by status{of_task}", each.statuses)
        hovers += _bars(row[1], f"Trajectories by end{of_task}", each.ends)
    legend(figure, [("base", style.BASE, "s"), ("trained", style.TRAINED, "s")])
    return ReportFigure(
        name="call_shares",
        figure=figure,
        title="Outcomes of calls and trajectories",
        description="; ".join(_in_words(each) for each in shares) + ".",
        caption="Greedy trajectories. Left: shares of all calls. Right: shares of all trajectories.",
        hovers=hovers,
    )


def _names(by_policy: Mapping[Variant, Mapping[str, float]]) -> list[str]:
    sums = {
        name: sum(shares.get(name, 0.0) for shares in by_policy.values())
        for each in by_policy.values()
        for name in each
    }
    return sorted(sums, key=lambda name: (-sums[name], name))


def _bars(axes: Axes, title: str, by_policy: Mapping[Variant, Mapping[str, float]]) -> list[Hover]:
    names = _names(by_policy)
    positions = np.arange(len(names))
    for policy, offset, colour in zip(VARIANTS, (-0.2, 0.2), (style.BASE, style.TRAINED), strict=True):
        axes.barh(positions + offset, [by_policy[policy].get(name, 0.0) for name in names], BAR, color=colour)
    axes.set_title(title)
    axes.set_yticks(positions, names)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.set_xlim(0, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    if not names:
        axes.text(0.5, 0.5, "no calls", transform=axes.transAxes, ha="center", va="center")
    hovers = []
    for place, name in enumerate(names):
        both = ", ".join(f"{policy} {by_policy[policy].get(name, 0.0):.1%}" for policy in VARIANTS)
        hovers.append(Hover(axes=axes, text=f"{name}: {both}", y=(place - 0.5, place + 0.5)))
    return hovers


def _in_words(each: Shares) -> str:
    statuses = [
        f"{policy} {share:.2f}" for policy in VARIANTS if (share := each.statuses[policy].get("ok")) is not None
    ]
    return (
        f"{each.task}: share of successful calls {', '.join(statuses)}"
        if statuses
        else f"{each.task}: no successful calls"
    )
