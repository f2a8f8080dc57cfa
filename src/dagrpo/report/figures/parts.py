"""Shared parts of figures: captions, curves over steps, paired distributions, legends."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dagrpo.core.metrics import METRICS, Metric
from dagrpo.core.metrics import Figure as FigureName
from dagrpo.evaluation.statistics import Floats, mean_over_seeds
from dagrpo.report import style
from dagrpo.report.curves import Curves, moving_average
from dagrpo.report.format import EN_DASH
from dagrpo.report.rollouts import Phases
from dagrpo.report.style import INK, PAPER, SERIES

CURVE_CONFIDENCE = 0.95
FEW_STEPS = 12  # or fewer: each is marked by a dot
ROUND_STEPS = (1, 2, 2.5, 5, 10)  # between ticks, times a power of ten
MOST_BANDS = 80  # over one curve: of more steps, some share a band
_OPENING = re.compile(r"<svg [^>]*>")
_ID = re.compile(r'(id="|url\(#|href="#)')
_FACE = re.compile(r"font-family: [^;\"]+")
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hover:
    """A rectangle over a figure, in the axes' coordinates, with its hover text. None: from end to end."""

    axes: Axes
    text: str
    x: tuple[float, float] | None = None
    y: tuple[float, float] | None = None


def over_steps(axes: Axes, steps: Floats, text_at: Callable[[int], str]) -> list[Hover]:
    """Return a band around each step; the callable maps an index into `steps` to the band's text."""
    stride = -(-len(steps) // MOST_BANDS)
    places = range(stride - 1 if stride < len(steps) else 0, len(steps), stride)
    half = stride / 2
    return [
        Hover(axes=axes, text=text_at(place), x=(float(steps[place]) - half, float(steps[place]) + half))
        for place in places
    ]


def with_hovers(svg: str, figure: Figure, hovers: Sequence[Hover]) -> str:
    """Return the figure's SVG with the hovers laid over it. Call after the figure has been written: axes get their position then."""
    width, height = figure.get_size_inches() * 72  # of matplotlib's viewBox
    rectangles = [_rectangle(hover, figure, float(width), float(height)) for hover in hovers]
    head, closing, tail = svg.rpartition("</svg>")
    return f"{head}{''.join(rectangles)}{closing}{tail}"


def _rectangle(hover: Hover, figure: Figure, width: float, height: float) -> str:
    box = hover.axes.get_position()
    left, right = (box.x0, box.x1) if hover.x is None else _shares(hover.axes, figure, hover.x, 0)
    low, high = (box.y0, box.y1) if hover.y is None else _shares(hover.axes, figure, hover.y, 1)
    left, right = np.clip((left, right), box.x0, box.x1)
    low, high = np.clip((low, high), box.y0, box.y1)
    return (
        f'<rect x="{left * width:.1f}" y="{(1 - high) * height:.1f}" width="{(right - left) * width:.1f}" '
        f'height="{(high - low) * height:.1f}" fill="none" pointer-events="all"><title>{escape(hover.text)}</title></rect>\n'
    )


def _shares(axes: Axes, figure: Figure, ends: tuple[float, float], axis: int) -> tuple[float, float]:
    """Convert data coordinates along one axis into shares of the figure, ascending."""
    other = (axes.get_xlim(), axes.get_ylim())[1 - axis][0]
    points = [(end, other) if axis == 0 else (other, end) for end in ends]
    pixels = axes.transData.transform(points)[:, axis]
    low, high = sorted(float(pixel) / (figure.bbox.width, figure.bbox.height)[axis] for pixel in pixels)
    return low, high


def inline(svg: str, name: str, title: str, description: str) -> str:
    """Return the <svg> element for a page that defines --paper and --series-1 .. --series-6; `name` prefixes every id."""
    opening = _OPENING.search(svg)
    view_box = re.search(r'viewBox="([^"]+)"', svg)
    assert opening is not None, "matplotlib wrote an <svg> element"
    assert view_box is not None, "matplotlib wrote a viewBox"
    body = _METADATA.sub("", svg[opening.end() :]).replace("xlink:href=", "href=")
    body = _ID.sub(rf"\1{name}-", body)
    body = _FACE.sub("font-family: var(--sans)", _themed(body))
    head = (
        f'<svg viewBox="{view_box.group(1)}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    )
    return head + body.strip()


def _themed(svg: str) -> str:
    svg = svg.replace(INK, "currentColor").replace(PAPER, "var(--paper)")
    for number, colour in enumerate(SERIES, start=1):
        svg = svg.replace(colour, f"var(--series-{number})")
    return svg


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFigure:
    """A figure with its title and its text alternative."""

    name: str  # of its files
    figure: Figure
    title: str
    description: str
    caption: str
    hovers: Sequence[Hover] = ()  # texts shown where the pointer rests

    def svg(self, *, transparent: bool = False) -> str:
        """Return the figure as SVG text, with its hover texts."""
        return with_hovers(style.to_svg(self.figure, self.name, transparent=transparent), self.figure, self.hovers)

    @property
    def markup(self) -> Markup:
        """The <svg> element for a page. Its texts are escaped here."""
        return Markup(inline(self.svg(transparent=True), self.name, self.title, self.description))


def empty_figure(name: str, title: str, reason: str) -> ReportFigure:
    """Return a figure that has nothing to show, with the reason in its place."""
    figure = style.new_figure(0.8)
    axes = figure.subplots()
    axes.set_axis_off()
    axes.text(0.5, 0.5, reason, ha="center", va="center")
    return ReportFigure(name=name, figure=figure, title=title, description=reason, caption=reason)


def panels(count: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels in rows of some height, in inches."""
    rows = -(-count // columns)
    figure = style.new_figure(height * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[count:]:
        axes.set_axis_off()
    return figure, list(grid[:count])


def legend(figure: Figure, entries: Sequence[tuple[str, str, str]]) -> None:
    """Draw a legend above the axes, where it hides no data. Entries are (label, colour, marker)."""
    handles = [
        Line2D([], [], color=colour, marker=marker, label=label, linestyle="" if marker == "s" else "-", markersize=5.5)
        for label, colour, marker in entries
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(len(entries), 7))


def curve(axes: Axes, curves: Curves, values: Floats, window: int) -> list[Hover]:
    """Draw one seed raw and smoothed; several each smoothed, with their mean and its interval over seeds. Returns hovers."""
    smooth = moving_average(values, window)
    marker = marker_of(curves)
    if len(curves.seeds) == 1:
        axes.plot(curves.steps, values[0], color=style.TRAINED, marker=marker, linewidth=0.8, alpha=0.45)
        axes.plot(curves.steps, smooth[0], color=style.TRAINED, marker=marker)
    else:
        for row in range(len(curves.seeds)):
            axes.plot(curves.steps, smooth[row], color=series(row), marker=marker, linewidth=0.9, alpha=0.9)
        mean, low, high = mean_over_seeds(smooth, CURVE_CONFIDENCE)
        axes.fill_between(curves.steps, low, high, color=style.INK, alpha=0.12, linewidth=0)
        axes.plot(curves.steps, mean, color=style.INK, marker=marker, linewidth=1.8)
    axes.ticklabel_format(axis="y", useOffset=False)
    step_axis(axes)
    return over_steps(axes, curves.steps, lambda place: _values_as_text(curves, values, smooth, place))


def _values_as_text(curves: Curves, values: Floats, smooth: Floats, place: int) -> str:
    step = f"step {curves.steps[place]:.0f}"
    if len(curves.seeds) == 1:
        return f"{step}: {number(values[0, place])}, moving average {number(smooth[0, place])}"
    of_seeds = ", ".join(
        f"seed {seed} {number(value)}" for seed, value in zip(curves.seeds, smooth[:, place], strict=True)
    )
    return f"{step}: mean {number(smooth[:, place].mean())}; {of_seeds}"


def number(value: float) -> str:
    """Write a value; another project's trainer loses those of a step if it dies between its checkpoint and their line."""
    return "not recorded" if np.isnan(value) else f"{value:.4g}"


def recorded_of(figure: FigureName, curves: Curves) -> list[Metric]:
    """Return the metrics that belong to a figure, by their definitions, and that training recorded."""
    return [metric for metric in METRICS if metric.figure == figure and metric.name in curves.values]


def metric_curve(axes: Axes, curves: Curves, metric: Metric, window: int) -> list[Hover]:
    """Draw the curve of one metric under its title, or that of its complement. Returns hovers."""
    values = curves[metric.name]
    hovers = curve(axes, curves, 1 - values if metric.complement else values, window)
    axes.set_title(metric.complement or metric.title)
    if metric.is_share:
        percent_ticks(axes)
    return hovers


def marker_of(curves: Curves) -> str:
    return "." if len(curves.steps) <= FEW_STEPS else ""


def curve_in_words(curves: Curves, window: int) -> str:
    """Return a caption that explains the lines drawn by `curve`."""
    average = "each step" if window == 1 else f"moving average over {window} steps"
    if len(curves.seeds) == 1:
        return f"Faint: each step; bold: {average}."
    return (
        f"Coloured: {average}, one line per seed; dark: their mean, with its {100 * CURVE_CONFIDENCE:g}% interval "
        "over seeds (Student)."
    )


def series(row: int) -> str:
    """Return the colour of a seed."""
    return style.SERIES[row % len(style.SERIES)]


def step_axis(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=ROUND_STEPS))
    axes.set_xlabel("step")
    axes.margins(x=0.01)


def seed_legend(figure: Figure, curves: Curves) -> None:
    if len(curves.seeds) > 1:
        seeds = [(f"seed {seed}", series(row), "") for row, seed in enumerate(curves.seeds)]
        legend(figure, [*seeds, ("mean", style.INK, "")])


def share_axis(axes: Axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    percent_ticks(axes)


def percent_ticks(axes: Axes) -> None:
    """Label shares as percent, with as many decimals as the axis needs: a tick at 2.5% is not labelled 2%."""
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))


def paired_bars(axes: Axes, labels: Sequence[str], shares: Sequence[Floats]) -> list[Hover]:
    """Draw two bars at each label, for the first and the last steps. Returns hovers."""
    positions = np.arange(len(labels))
    for share, offset, colour in zip(shares, (-0.2, 0.2), (style.BASE, style.TRAINED), strict=True):
        axes.bar(positions + offset, share, width=0.36, color=colour)
    axes.set_xticks(positions, labels)
    return [
        Hover(axes=axes, text=_first_and_last(label, one, other), x=(place - 0.5, place + 0.5))
        for place, (label, one, other) in enumerate(zip(labels, *shares, strict=True))
    ]


def _first_and_last(label: str, first: float, last: float) -> str:
    return f"{label}: {first:.1%} in the first steps, {last:.1%} in the last"


def paired_steps(axes: Axes, samples: Sequence[Floats], edges: Floats) -> list[Hover]:
    """Draw two histograms, for the first and the last steps. Returns hovers."""
    for values, colour in zip(samples, (style.BASE, style.TRAINED), strict=True):
        shares = np.histogram(values, edges)[0] / len(values)
        axes.stairs(shares, edges, color=colour, fill=True, alpha=0.18)
        axes.stairs(shares, edges, color=colour, linewidth=1.4)
    first, last = (np.histogram(values, edges)[0] / len(values) for values in samples)
    return [
        Hover(axes=axes, text=_first_and_last(f"{low:g} to {high:g}", one, other), x=(float(low), float(high)))
        for low, high, one, other in zip(edges[:-1], edges[1:], first, last, strict=True)
    ]


def phase_legend(figure: Figure, phases: Phases) -> None:
    first, last = (
        f"step {start}" if start == end else f"steps {start}{EN_DASH}{end}" for start, end in (p.steps for p in phases)
    )
    legend(figure, [(first, style.BASE, "s"), (last, style.TRAINED, "s")])
