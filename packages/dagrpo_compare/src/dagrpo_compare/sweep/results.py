"""Results of a sweep: scores of its finished cells, and paired differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from dagrpo.config.documents import yaml_value
from dagrpo.config.schema import Params
from dagrpo.config.sweeps import Cell, read_sweep
from dagrpo.core.errors import UserError
from dagrpo.evaluation.power import detectable_of
from dagrpo.evaluation.statistics import Estimate, bootstrap, paired_difference
from dagrpo.pipeline.override_runs import CellRun, cell_runs
from dagrpo.report.comparison import estimate_of
from dagrpo.utils.files import canonical_json
from dagrpo_compare.comparison import (
    Evaluated,
    read_evaluated,
    shared_by,
    trouble_between,
    values_of,
)

GREEDY = "greedy"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellScore:
    """The greedy accuracy of one finished cell, as a share; differences are paired, to the reference."""

    folder: str
    values: Cell
    seeds: int
    score: Estimate
    difference: Estimate | None  # None: of the reference, or of one with which it cannot be compared
    together: Estimate | None  # the same difference with Bonferroni's interval: all hold together with the confidence
    detectable: (
        float | None
    )  # the least difference that is shown to the reference with probability 0.8 if all hold together


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisValue:
    """The mean greedy accuracy of all finished cells with one value of an axis, over their shared seeds and problems."""

    axis: str
    value: object
    cells: int
    score: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResults:
    """The results of all finished cells on one task."""

    task: str
    reference: str  # folder of the cell with the parameters of params.yaml; of the first one without it
    problems: int  # of the reference
    confidence: float
    scores: tuple[CellScore, ...]
    means: tuple[AxisValue, ...]  # of axes with several cells at a value; () if cells share no seed or problem
    notes: tuple[str, ...]

    @property
    def comparisons(self) -> int:
        """Return the number of differences to the reference."""
        return sum(each.difference is not None for each in self.scores)

    @property
    def confidence_together(self) -> float:
        """Return the confidence of each interval with which all hold together (Bonferroni; Dunn 1961)."""
        return 1 - (1 - self.confidence) / max(1, self.comparisons)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResults:
    """The results of a sweep, and its cells without scores."""

    sweep: str
    experiment: str
    axes: tuple[str, ...]
    tasks: tuple[TaskResults, ...]
    unfinished: tuple[tuple[str, Cell], ...]  # folders and values


def read_results(name: str, params: Params) -> SweepResults:
    """Read the scores of a sweep's cells. Raises UserError if the sweep is unknown or does not fit params.yaml."""
    sweep = read_sweep(name)
    cells = cell_runs(sweep, params)
    finished = [(cell, evaluated) for cell in cells if (evaluated := _evaluated(cell)) is not None]
    tasks = [task for task in params.experiment.evaluate if any(task in each.tasks for _, each in finished)]
    there = {each.name for _, each in finished}
    return SweepResults(
        sweep=name,
        experiment=params.experiment.name,
        axes=tuple(sweep.axes),
        tasks=tuple(_of_task(task, [each for each in finished if task in each[1].tasks], sweep.axes) for task in tasks),
        unfinished=tuple((cell.run.folder, cell.values) for cell in cells if cell.run.folder not in there),
    )


def _evaluated(cell: CellRun) -> Evaluated | None:
    try:
        return read_evaluated(cell.run.folder, "trained")
    except UserError:  # no scores yet
        return None


def _of_task(task: str, cells: Sequence[tuple[CellRun, Evaluated]], axes: Sequence[str]) -> TaskResults:
    own = [each for cell, each in cells if all(key.startswith("experiment.") for key in cell.run.overrides)]
    reference = own[0] if own else cells[0][1]  # the cell with the values of params.yaml, but for name and seeds
    troubles = {each.name: trouble_between(reference, each, task) for _, each in cells}
    comparisons = sum(trouble is None for trouble in troubles.values()) - 1
    scores = [_score(task, cell, each, reference, troubles[each.name], comparisons) for cell, each in cells]
    return TaskResults(
        task=task,
        reference=reference.name,
        problems=len(reference.problems(task)),
        confidence=reference.resampling(task).confidence,
        scores=tuple(scores),
        means=tuple(_means(task, cells, axes)),
        notes=tuple(trouble for trouble in troubles.values() if trouble is not None),
    )


def _score(
    task: str, cell: CellRun, own: Evaluated, reference: Evaluated, trouble: str | None, comparisons: int
) -> CellScore:
    resampling, seeds = own.resampling(task), own.seeds(task)
    values = values_of(own, task, seeds, own.problems(task))[GREEDY]
    difference = together = least = None
    if own is not reference and trouble is None:
        both, problems = shared_by(reference, own, task)
        one, other = (values_of(each, task, both, problems)[GREEDY] for each in (reference, own))
        difference = paired_difference(one, other, resampling)
        all_hold = 1 - (1 - resampling.confidence) / comparisons
        together = paired_difference(one, other, replace(resampling, confidence=all_hold))
        least = detectable_of(other - one, all_hold)
    return CellScore(
        folder=own.name,
        values=cell.values,
        seeds=len(seeds),
        score=estimate_of(GREEDY, values, resampling),
        difference=difference,
        together=together,
        detectable=least,
    )


def _means(task: str, cells: Sequence[tuple[CellRun, Evaluated]], axes: Sequence[str]) -> list[AxisValue]:
    """Return the mean over the other axes at each value of the axes with several cells at some value."""
    seeds = sorted(set.intersection(*(set(each.seeds(task)) for _, each in cells)))
    of_all = set.intersection(*(set(each.problems(task)) for _, each in cells))
    problems = [problem for problem in cells[0][1].problems(task) if problem in of_all]
    if not seeds or not problems:
        return []
    resampling = cells[0][1].resampling(task)
    matrices = [(cell.values, values_of(each, task, seeds, problems)[GREEDY]) for cell, each in cells]
    means = []
    for axis in axes:
        by_value = grouped([(values.get(axis), matrix) for values, matrix in matrices if axis in values])
        if any(len(group) > 1 for _, group in by_value):
            means += [
                AxisValue(axis=axis, value=value, cells=len(group), score=bootstrap(np.mean(group, axis=0), resampling))
                for value, group in by_value
            ]
    return means


def grouped(pairs: Sequence[tuple[Any, T]]) -> list[tuple[Any, list[T]]]:
    """Group by value, in the order of the first of each; numbers ascending."""
    groups: dict[str, tuple[Any, list[T]]] = {}
    for value, each in pairs:
        groups.setdefault(canonical_json(value), (value, []))[1].append(each)
    found = list(groups.values())
    return sorted(found, key=lambda each: each[0]) if all(is_number(value) for value, _ in found) else found


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def value_in_words(value: object) -> str:
    """Return a value of an axis in words; "" where a cell does not set it. Of a plug-in its name, then its parameters."""
    if isinstance(value, Mapping):
        name, rest = value.get("name", ""), {key: each for key, each in value.items() if key != "name"}
        return ", ".join(filter(None, [str(name), *(f"{key} {value_in_words(each)}" for key, each in rest.items())]))
    return "" if value is None else f"{value:g}" if isinstance(value, float) else yaml_value(value)
