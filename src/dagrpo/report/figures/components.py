"""Figure of the reward's components: a curve each, and their correlations."""

import numpy as np
from matplotlib.axes import Axes

from dagrpo.report import style
from dagrpo.report.components import Correlations, component_names
from dagrpo.report.curves import Curves
from dagrpo.report.figures.parts import ReportFigure, curve, curve_in_words, seed_legend
from dagrpo.report.svg import Hover
from dagrpo.rewards.hacking import PREFIX

COLUMNS = 3
STRONG = 0.6  # correlation from which on its number is light on dark


def reward_components(curves: Curves, found: Correlations | None, window: int) -> ReportFigure | None:
    """Draw a panel for each component before its weight, and one of their correlations; None for a single component."""
    names = component_names(curves)
    if len(names) < 2:
        return None
    panels = len(names) + (found is not None)
    rows = -(-panels // COLUMNS)
    figure = style.new_figure(2.0 * rows + 0.4)
    grid = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    hovers: list[Hover] = []
    for axes, name in zip(grid, names, strict=False):
        hovers += curve(axes, curves, curves[PREFIX + name], window)
        axes.set_title(name)
    if found is not None:
        hovers += _matrix(grid[len(names)], found)
    for axes in grid[panels:]:
        axes.set_axis_off()
    seed_legend(figure, curves)
    last = ", ".join(f"{name} {curves[PREFIX + name][:, -1].mean():.3g}" for name in names)
    return ReportFigure(
        name="reward_components",
        figure=figure,
        title="Components of the reward",
        description=f"In the last step: {last}.",
        caption=f"{curve_in_words(curves, window)} Means over the trajectories of the update, before the weights. {_about(found)}"
        "A shaped component that rises while accuracy falls is exploited.",
        hovers=hovers,
    )


def _about(found: Correlations | None) -> str:
    if found is None:
        return ""
    first, last = found.steps
    return (
        f"Last panel: correlation of two components over the trajectories of the steps {first} to {last}; empty where one is "
        "constant. "
    )


def _matrix(axes: Axes, found: Correlations) -> list[Hover]:
    """Draw the correlations below the diagonal as coloured squares with their numbers. Returns hovers."""
    count = len(found.names)
    hovers = []
    for row in range(1, count):
        for column in range(row):
            value = float(found.values[row, column])
            if np.isnan(value):
                continue
            colour = style.TRAINED if value > 0 else style.BASE
            axes.fill_between(
                [column - 0.5, column + 0.5], row - 0.5, row + 0.5, color=colour, alpha=abs(value), linewidth=0
            )
            ink = style.PAPER if abs(value) >= STRONG else style.INK
            axes.text(column, row, f"{value:+.2f}", ha="center", va="center", color=ink)
            text = f"{found.names[row]} and {found.names[column]}: correlation {value:+.3f}"
            hovers.append(Hover(axes=axes, text=text, x=(column - 0.5, column + 0.5), y=(row - 0.5, row + 0.5)))
    axes.set_title("Correlation")
    axes.grid(visible=False)
    axes.set_xlim(-0.5, count - 1.5)
    axes.set_ylim(count - 0.5, 0.5)
    axes.set_xticks(range(count - 1), found.names[:-1], rotation=30, ha="right")
    axes.set_yticks(range(1, count), found.names[1:])
    axes.spines[["left", "bottom"]].set_visible(False)
    return hovers
