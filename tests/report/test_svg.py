"""What a figure tells where the pointer rests: the right words over the right place."""

import re
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dagrpo.report import style
from dagrpo.report.figures.parts import MOST_BANDS, Hover, ReportFigure, over_steps, percent_ticks

RECTANGLE = re.compile(
    r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="none" pointer-events="all"><title>(.*?)</title></rect>'
)


@pytest.fixture
def axes() -> Axes:
    """x from 0 to 10, y from 0 to 100 per cent downwards, on the right half of a figure two inches high."""
    with style.house_style():
        figure = style.new_figure(2.0)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0.5, 0.0, 0.5, 1.0))
        axes.set_xlim(0, 10)
        axes.set_ylim(1, 0)
    return axes


def test_a_rectangle_lies_where_its_values_are_drawn(axes: Axes) -> None:
    hovers, width = [Hover(axes=axes, text="<a>", x=(2, 4), y=(0.25, 0.5))], style.WIDTH * 72
    drawn = ReportFigure(name="n", figure=axes.figure, title="t", description="d", caption="c", hovers=hovers)  # type: ignore[arg-type]
    ((*place, text),) = RECTANGLE.findall(drawn.svg())
    assert [float(number) for number in place] == pytest.approx([width * 0.6, 36.0, width * 0.1, 36.0], abs=0.1)
    assert text == "&lt;a&gt;"


@pytest.mark.parametrize("count", [1, MOST_BANDS, MOST_BANDS + 1, 1000])
def test_bands_over_steps_lie_side_by_side_and_end_at_the_last(axes: Axes, count: int) -> None:
    bands = over_steps(axes, np.arange(1.0, count + 1), lambda place: str(place + 1))
    assert 1 <= len(bands) <= MOST_BANDS
    edges = [band.x for band in bands if band.x is not None]
    assert all(first[1] == second[0] for first, second in pairwise(edges))
    assert all(low < float(band.text) <= high for band, (low, high) in zip(bands, edges, strict=True))
    assert count - float(bands[-1].text) < count / MOST_BANDS + 1


@pytest.mark.parametrize(
    ("top", "labels"),
    [(1.0, ["0%", "20%", "40%", "60%", "80%", "100%"]), (0.1, ["0.0%", "2.5%", "5.0%", "7.5%", "10.0%"])],
)
def test_a_tick_is_labelled_with_its_value_and_not_a_rounded_one(top: float, labels: list[str]) -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.set_ylim(0, top)
    axes.set_yticks([top * step / (len(labels) - 1) for step in range(len(labels))])
    percent_ticks(axes)
    figure.canvas.draw()
    assert [label.get_text() for label in axes.get_yticklabels()] == labels
