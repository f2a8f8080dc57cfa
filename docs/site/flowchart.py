"""The directive `mermaid` for a flowchart of `a --> b` lines: an SVG drawn here, so that no page loads Mermaid's script.

GitHub draws the same block by itself. What is not such a line is refused, rather than left out of the picture.
"""

import re
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WIDTH, HEIGHT = 64, 28  # of a box
ACROSS, DOWN = 83, 46  # from one box to the next
MARKER = (
    '<defs><marker id="arrow" viewBox="0 0 6 6" refX="1" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
    '<path d="M0,0 L6,3 L0,6 z" fill="currentColor"/></marker></defs>'
)
ARROW = re.compile(r"\s*(\w+) --> (\w+)\s*")


@dataclass(frozen=True, slots=True)
class Point:
    """A place in the picture, the middle of a box."""

    x: float
    y: float


def drawn(arrows: list[tuple[str, str]]) -> str:
    """An SVG: boxes in columns from left to right, each as far to the right as its longest way from a start."""
    column = _columns(arrows)
    paths = [_path(start, end, column) for start, end in arrows]
    place = _places(paths, column)
    width = max(point.x for point in place.values()) + WIDTH / 2 + 1
    height = max(point.y for point in place.values()) + HEIGHT / 2 + 1
    shapes = [_line([place[name] for name in path]) for path in paths]
    shapes += [_box(name, place[name]) for name in column]
    return (
        f'<div class="flowchart"><svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
        f'aria-label="{escape(", ".join(f"{start} to {end}" for start, end in arrows))}">{MARKER}{"".join(shapes)}</svg></div>'
    )


def _columns(arrows: list[tuple[str, str]]) -> dict[str, int]:
    column = {name: 0 for arrow in arrows for name in arrow}
    for _ in column:  # the longest way has fewer arrows than there are boxes
        for start, end in arrows:
            column[end] = max(column[end], column[start] + 1)
    return column


def _path(start: str, end: str, column: dict[str, int]) -> list[str]:
    """The boxes of an arrow, and in each column between them a place that is kept free for it."""
    between = range(column[start] + 1, column[end])
    return [start, *(f"{start} {end} {at}" for at in between), end]


def _places(paths: list[list[str]], column: dict[str, int]) -> dict[str, Point]:
    """Rows of a column in the order in which arrows come to them, arrows that go far below the others."""
    at: dict[int, list[str]] = {}
    for path in sorted(paths, key=len):
        for step, name in enumerate(path):
            names = at.setdefault(column[path[0]] + step, [])
            if name not in names:
                names.append(name)
    most = max(map(len, at.values()))
    return {
        name: Point(1 + WIDTH / 2 + number * ACROSS, 1 + HEIGHT / 2 + DOWN * (row + (most - len(names)) / 2))
        for number, names in at.items()
        for row, name in enumerate(names)
    }


def _line(points: list[Point]) -> str:
    curve = f"M{points[0].x + WIDTH / 2:g},{points[0].y:g}"
    for start, end in pairwise(points):
        left, right = start.x + WIDTH / 2, end.x - WIDTH / 2 - (5 if end is points[-1] else 0)
        middle = (left + right) / 2
        curve += f" L{left:g},{start.y:g} C{middle:g},{start.y:g} {middle:g},{end.y:g} {right:g},{end.y:g}"
    return f'<path d="{curve}" fill="none" stroke="currentColor" marker-end="url(#arrow)"/>'


def _box(name: str, at: Point) -> str:
    left, top = at.x - WIDTH / 2, at.y - HEIGHT / 2
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="none" stroke="currentColor"/>'
        f'<text x="{at.x:g}" y="{at.y + 4:g}" text-anchor="middle" font-size="13" fill="currentColor">{escape(name)}</text>'
    )


class Flowchart(SphinxDirective):  # type: ignore[misc]  # Sphinx is not in .venv
    """`flowchart LR`, and a line for each arrow."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        head, *lines = [line for line in self.content if line.strip()]
        matches = [ARROW.fullmatch(line) for line in lines]
        if head.strip() != "flowchart LR" or not all(matches):
            raise self.error("only `flowchart LR` with lines such as `a --> b` is drawn")
        return [nodes.raw("", drawn([(match[1], match[2]) for match in matches if match]), format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("mermaid", Flowchart)
    return {"parallel_read_safe": True}
