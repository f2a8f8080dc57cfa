"""SVG of figures: hover texts, and the form that a page embeds.

No script runs; a hover text is a <title> over a part of the figure.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dagrpo.evaluation.statistics import Floats
from dagrpo.report.style import INK, PAPER, SERIES

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
