"""Figure: base against trained policy, and the paired difference."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from dagrpo.evaluation.statistics import Estimate
from dagrpo.report import style
from dagrpo.report.comparison import MetricComparison, TaskComparison
from dagrpo.report.figures.parts import Drawn, legend
from dagrpo.report.wording import metric_label


def base_vs_trained(comparisons: Sequence[TaskComparison]) -> Drawn:
    """Dots with intervals: both policies on the left, the paired difference on the right."""
    rows = [(comparison, metric) for comparison in comparisons for metric in comparison.metrics]
    figure = style.new_figure(0.34 * len(rows) + 1.15)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    positions = np.arange(len(rows), dtype=np.float64)[::-1]
    for position, (_, metric) in zip(positions, rows, strict=True):
        _dot(left, metric.base, position + 0.13, style.BASE, "o")
        _dot(left, metric.trained, position - 0.13, style.TRAINED, "D")
        _dot(right, metric.difference, position, style.INK, "o")
    left.set_yticks(positions, [_row_label(comparison, metric, len(comparisons)) for comparison, metric in rows])
    _finish(left, right, len(rows))
    legend(figure, [("base", style.BASE, "o"), ("trained", style.TRAINED, "D")])
    return Drawn(
        name="base_vs_trained",
        figure=figure,
        title="Base against trained policy",
        description="; ".join(_in_words(comparison, metric) for comparison, metric in rows) + ".",
        caption=f"Left: the score of each policy with its {100 * comparisons[0].confidence:g}% interval. Right: trained "
        "minus base on the same problems, in percentage points; an interval that crosses the line at 0 shows no "
        "difference.",
    )


def _dot(axes: Axes, estimate: Estimate, position: float, colour: str, marker: str) -> None:
    axes.plot([estimate.low, estimate.high], [position, position], color=colour, linewidth=1.6)
    axes.plot(estimate.value, position, marker=marker, color=colour, markersize=5.5, markeredgecolor=style.PAPER)


def _row_label(comparison: TaskComparison, metric: MetricComparison, tasks: int) -> str:
    label = metric_label(metric.metric)
    return label if tasks == 1 else f"{comparison.task}, {label[0].lower()}{label[1:]}"


def _finish(left: Axes, right: Axes, rows: int) -> None:
    left.set_title("Score")
    right.set_title("Trained minus base, points")
    left.xaxis.set_major_formatter(PercentFormatter(1))
    right.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:+.3g}" if share else "0"))
    right.axvline(0, color=style.INK, linewidth=0.9)
    for axes in (left, right):
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_ylim(-0.6, rows - 0.4)
        axes.xaxis.set_major_locator(MaxNLocator(6))


def _in_words(comparison: TaskComparison, metric: MetricComparison) -> str:
    base, trained = metric.base.value, metric.trained.value
    return f"{comparison.task}, {metric_label(metric.metric)}: base {base:.3f}, trained {trained:.3f}"
