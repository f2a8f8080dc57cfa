"""Figure: base against trained policy, and the paired difference."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dagrpo.evaluation.statistics import Estimate
from dagrpo.report import style
from dagrpo.report.comparison import MetricComparison, TaskComparison
from dagrpo.report.figures.parts import ROUND_STEPS, Hover, ReportFigure, legend
from dagrpo.report.format import MINUS, metric_label, percent, percent_interval, points, points_interval


def base_vs_trained(comparisons: Sequence[TaskComparison]) -> ReportFigure:
    """Draw dots with intervals: both policies on the left, the paired difference on the right."""
    rows = _rows(comparisons)
    figure = style.new_figure(0.33 * len(rows) + 1.15)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2), gridspec_kw={"wspace": 0.08})
    for position, (_, metric) in enumerate(rows):
        if metric is not None:
            _dot(left, metric.first, position - 0.13, style.BASE, "o")
            _dot(left, metric.second, position + 0.13, style.TRAINED, "D")
            _dot(right, metric.difference, position, style.INK, "o")
    _finish(left, right, rows)
    legend(figure, [("base", style.BASE, "o"), ("trained", style.TRAINED, "D")])
    return ReportFigure(
        name="base_vs_trained",
        figure=figure,
        title="Base against trained policy",
        description="; ".join(
            f"{each.label}, {metric_label(metric.name)}: base {metric.first.value:.3f}, trained {metric.second.value:.3f}"
            for each in comparisons
            for metric in each.metrics
        )
        + ".",
        caption=f"Left: score of each policy with its {100 * comparisons[0].confidence:g}% interval. Right: trained "
        "minus base on the same problems, in percentage points; an interval that crosses 0 shows no difference.",
        hovers=[
            hover
            for position, (_, metric) in enumerate(rows)
            if metric is not None
            for hover in _hovers_of_row(left, right, position, metric)
        ],
    )


def _hovers_of_row(left: Axes, right: Axes, position: int, metric: MetricComparison) -> list[Hover]:
    row = (position - 0.5, position + 0.5)
    both = [
        f"{name} {percent(each.value)} ({percent_interval(each)})"
        for name, each in (("base", metric.first), ("trained", metric.second))
    ]
    change = f"{points(metric.difference.value)} points ({points_interval(metric.difference)})"
    label = metric_label(metric.name)
    return [
        Hover(axes=left, text=f"{label}: {', '.join(both)}", y=row),
        Hover(axes=right, text=f"{label}: {change}", y=row),
    ]


def _rows(comparisons: Sequence[TaskComparison]) -> list[tuple[str, MetricComparison | None]]:
    """Return the label and metric of each line, from the top; with several tasks, a task's name precedes its metrics."""
    rows: list[tuple[str, MetricComparison | None]] = []
    for comparison in comparisons:
        if len(comparisons) > 1:
            rows.append((comparison.label, None))
        rows += [(metric_label(metric.name), metric) for metric in comparison.metrics]
    return rows


def _dot(axes: Axes, estimate: Estimate, position: float, colour: str, marker: str) -> None:
    axes.plot([estimate.low, estimate.high], [position, position], color=colour, linewidth=1.6)
    axes.plot(estimate.value, position, marker=marker, color=colour, markersize=5, markeredgewidth=0)


def _finish(left: Axes, right: Axes, rows: Sequence[tuple[str, MetricComparison | None]]) -> None:
    left.set_yticks(range(len(rows)), [label for label, _ in rows])
    for label, (_, metric) in zip(left.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if metric is None else "normal")
    left.set_title("Score")
    right.set_title("Trained minus base, points")
    left.xaxis.set_major_formatter(PercentFormatter(1))
    right.xaxis.set_major_formatter(
        lambda share, _: f"{100 * share:+.3g}".replace("-", MINUS) if share else "0"  # in points
    )
    right.axvline(0, color=style.INK, linewidth=0.9)
    for axes in (left, right):
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=ROUND_STEPS))
