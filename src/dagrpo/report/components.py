"""Correlations of the reward's components, and signs that one is exploited."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dagrpo.evaluation.statistics import Floats
from dagrpo.report.curves import Curves
from dagrpo.report.inputs import Inputs
from dagrpo.report.rollouts import has_rollouts, sampled_rollouts
from dagrpo.rewards.hacking import PREFIX, hacked
from dagrpo.rollout.table import without_discarded


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
    if len(names) < 2 or not all(has_rollouts(inputs, seed) for seed in inputs.seeds):
        return None
    steps = [range(max(1, end - most_steps + 1), end + 1) for end in ends]
    tables = [
        sampled_rollouts(inputs, seed, step) for seed, own in zip(inputs.seeds, steps, strict=True) for step in own
    ]
    rows = [row for table in tables for row in _components(table)]
    found = [[row[name] for name in names] for row in rows if row.keys() >= {*names}]
    if len(found) < 2:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):  # a constant component has no correlation
        values = np.asarray(np.corrcoef(np.array(found, dtype=np.float64), rowvar=False))
    return Correlations(names=tuple(names), values=values, steps=(min(own[0] for own in steps), max(ends)))


def _components(table: pa.Table) -> list[dict[str, float]]:
    if "components" not in table.column_names:
        return []
    return [dict(row) for row in without_discarded(table)["components"].to_pylist()]


def exploited(curves: Curves) -> list[str]:
    """Return a warning for each seed and component that rose while accuracy fell."""
    return [
        f"Seed {seed}: {found}."
        for row, seed in enumerate(curves.seeds)
        for found in hacked({name: values[row, : curves.ends[row]] for name, values in curves.values.items()})
    ]
