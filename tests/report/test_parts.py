"""Parts that several figures share."""

import pytest
from matplotlib.figure import Figure

from dagrpo.report.figures.parts import percent_ticks


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
