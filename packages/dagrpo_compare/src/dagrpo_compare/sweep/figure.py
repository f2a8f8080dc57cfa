"""Figure of a sweep: scores with intervals against each axis."""

from collections.abc import Sequence
from math import ceil
from textwrap import shorten, wrap

from matplotlib.axes import Axes

from dagrpo.evaluation.statistics import Estimate
from dagrpo.report import style
from dagrpo.report.figures.parts import Hover, ReportFigure, percent_ticks
from dagrpo.report.format import percent, percent_interval
from dagrpo_compare.sweep.results import AxisValue, TaskResults, grouped, is_number, value_in_words

IN_A_ROW = 3
LOGARITHMIC = 20  # the largest value over the least, from which an axis is logarithmic
LONGEST_TICK, LINE = 60, 15  # characters of a label, and of a line of it
WIDTH = 0.04  # of the band for a hover, and between cells with one value, as a share of the axis


def against_axes(results: TaskResults, axes: Sequence[str], number: int) -> ReportFigure:
    """Draw a panel for each axis: faint the cells, bold their mean at each value. number: of the figure on its page."""
    rows = ceil(len(axes) / IN_A_ROW)
    figure = style.new_figure(2.4 * rows + 0.3)
    with style.house_style():
        panels = figure.subplots(rows, min(len(axes), IN_A_ROW), sharey=True, squeeze=False).flatten()
        hovers = [hover for panel, axis in zip(panels, axes, strict=False) for hover in _panel(panel, axis, results)]
        for panel in panels[len(axes) :]:
            panel.set_visible(False)
        for panel in panels[:: min(len(axes), IN_A_ROW)]:
            panel.set_ylabel("greedy accuracy")
            percent_ticks(panel)
    over = "over problems, and over seeds where there are several"
    level = f"{100 * results.confidence:g}% intervals"
    means = f"small: a cell; large: the mean of the cells with that value. Lines: {level} of the mean, {over}"
    cells = f"each a cell. Lines: {level}, {over}"
    return ReportFigure(
        name=f"sweep_{number}",
        figure=figure,
        title=f"Scores of {results.task} against each axis",
        description="; ".join(f"{each.folder}: {each.score.value:.3f}" for each in results.scores) + ".",
        caption=f"Dots: {means if results.means else cells}. Cells meet the same problems, so that intervals which overlap may "
        "belong to policies that differ: the table has the paired differences.",
        hovers=hovers,
    )


def _panel(panel: Axes, axis: str, results: TaskResults) -> list[Hover]:
    cells = [(each.values[axis], each) for each in results.scores if axis in each.values]
    values = [value for value, _ in grouped(cells)]
    places = _places(panel, values)
    means = {value_in_words(each.value): each for each in results.means if each.axis == axis}
    for value, each in cells:
        if means:
            place = places[value_in_words(value)]
            panel.plot(place, each.score.value, "o", color=style.INK, alpha=0.4, markersize=3.5, markeredgewidth=0)
        else:
            _dot(panel, each.score, places[value_in_words(value)])
    positions = [places[value_in_words(value)] for value in values]
    for words, mean in means.items():
        _dot(panel, mean.score, places[words])
    if means and all(map(is_number, values)):
        heights = [means[value_in_words(value)].score.value for value in values]
        panel.plot(positions, heights, color=style.TRAINED, linewidth=1.0)
    panel.set_xlabel(axis)
    return [
        Hover(axes=panel, text=_in_words(axis, value, means.get(value_in_words(value)), results), x=_band(panel, place))
        for value, place in zip(values, positions, strict=True)
    ]


def _in_words(axis: str, value: object, mean: AxisValue | None, results: TaskResults) -> str:
    own = [each for each in results.scores if value_in_words(each.values.get(axis)) == value_in_words(value)]
    lines = [f"{each.folder} {percent(each.score.value)} ({percent_interval(each.score)})" for each in own]
    head = "" if mean is None else f" mean {percent(mean.score.value)} ({percent_interval(mean.score)});"
    return f"{axis} {value_in_words(value)}:{head} {', '.join(lines)}"


def _places(panel: Axes, values: Sequence[object]) -> dict[str, float]:
    """Set up the horizontal axis, and return the place of each value: numbers where they are, others side by side."""
    words = [value_in_words(value) for value in values]
    if not all(map(is_number, values)):
        labels = ["\n".join(wrap(shorten(word, LONGEST_TICK, placeholder=" ..."), LINE)) for word in words]
        panel.set_xticks(range(len(values)), labels, fontsize=7)
        panel.set_xlim(-0.6, len(values) - 0.4)
        return {word: float(place) for place, word in enumerate(words)}
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if min(numbers) > 0 and max(numbers) / min(numbers) >= LOGARITHMIC:
        panel.set_xscale("log")
    if len(numbers) <= 6:
        panel.set_xticks(numbers, words)
        panel.minorticks_off()
    panel.margins(x=0.12)
    return dict(zip(words, numbers, strict=True))


def _band(panel: Axes, place: float) -> tuple[float, float]:
    low, high = panel.get_xlim()
    if panel.get_xscale() == "log":
        factor = (high / low) ** WIDTH
        return place / factor, place * factor
    return place - WIDTH * (high - low), place + WIDTH * (high - low)


def _dot(panel: Axes, estimate: Estimate, place: float) -> None:
    panel.plot([place, place], [estimate.low, estimate.high], color=style.TRAINED, linewidth=1.6)
    panel.plot(place, estimate.value, marker="o", color=style.TRAINED, markersize=5, markeredgewidth=0)
