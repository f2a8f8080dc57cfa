"""Correlations of the reward's components, and signs that one is exploited."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from dagrpo.evaluation.statistics import Floats
from dagrpo.report import style
from dagrpo.report.curves import Curves
from dagrpo.report.figures.parts import Hover, ReportFigure, curve, curve_in_words, panels, seed_legend
from dagrpo.report.inputs import Inputs
from dagrpo.report.rollouts import step_rollouts, steps_of
from dagrpo.rewards.hacking import PREFIX, hacked
from dagrpo.rollout.table import without_discarded

COLUMNS = 3
STRONG = 0.6  # correlation from which on its number is light on dark


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlations:
    """Correlations of the components of the same trajectories."""

    names: tuple[str, ...]
    values: Floats  # [components, components], NaN where one of the two is constant
    steps: tuple[int, int]  # first and last step whose trajectories these are


def component_names(curves: Curves) -> list[str]:
    """Return the names of the components that training recorded."""
    return [name.removeprefix(PREFIX) for name in curves.values if name.startswith(PREFIX)]


def correlations(inputs: Inputs, curves: Curves, most_steps: int) -> Correlations | None:
    """Return Pearson's correlations over the trajectories of the last steps of all seeds.

    None for fewer than two components, or if the tables of rollouts do not have them.
    """
    names, ends = component_names(curves), curves.ends
    if len(names) < 2 or not all(steps_of(inputs, seed) for seed in inputs.seeds):
        return None
    steps = [range(max(1, end - most_steps + 1), end + 1) for end in ends]
    tables = [
        step_rollouts(inputs, seed, step).short for seed, own in zip(inputs.seeds, steps, strict=True) for step in own
    ]
    recorded = [without_discarded(table)["components"] for table in tables if "components" in table.column_names]
    rows = [dict(row) for column in recorded for row in column.to_pylist()]
    found = [[row[name] for name in names] for row in rows if row.keys() >= {*names}]
    if len(found) < 2:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):  # a constant component has no correlation
        values = np.asarray(np.corrcoef(np.array(found, dtype=np.float64), rowvar=False))
    return Correlations(names=tuple(names), values=values, steps=(min(own[0] for own in steps), max(ends)))


def exploited(curves: Curves) -> list[str]:
    """Return a warning for each seed and component that rose while accuracy fell."""
    return [
        f"Seed {seed}: {found}."
        for row, seed in enumerate(curves.seeds)
        for found in hacked({name: values[row, : curves.ends[row]] for name, values in curves.values.items()})
    ]


def reward_components(curves: Curves, found: Correlations | None, window: int) -> ReportFigure | None:
    """Draw a panel for each component before its weight, and one of their correlations; None for a single component."""
    names = component_names(curves)
    if len(names) < 2:
        return None
    figure, grid = panels(len(names) + (found is not None), COLUMNS, 2.0)
    hovers: list[Hover] = []
    for axes, name in zip(grid, names, strict=False):
        hovers += curve(axes, curves, curves[PREFIX + name], window)
        axes.set_title(name)
    if found is not None:
        hovers += _matrix(grid[len(names)], found)
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
