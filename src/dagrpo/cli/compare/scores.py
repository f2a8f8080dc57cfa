"""Metrics and paired differences of two experiments on their common problems."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dagrpo.cli.compare.evaluated import Evaluated, Problem
from dagrpo.evaluation.outcomes import PROPORTIONS, values_per_problem
from dagrpo.evaluation.statistics import Estimate, Floats, Resampling, bootstrap, paired_difference, wilson

SAME_CONTRACT = ("extractor", "confidence")  # of scores.json: where they differ, scores mean different things


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric on the shared problems, as shares between 0 and 1; the difference is second minus first."""

    name: str  # greedy, mean_at_4, pass_at_2, maj_at_4
    first: Estimate
    second: Estimate
    difference: Estimate

    @property
    def is_shown(self) -> bool:
        """Return whether the interval of the difference excludes 0."""
        return not self.difference.low <= 0 <= self.difference.high


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPair:
    """Two experiments on one task."""

    task: str
    first: str
    second: str
    problems: int  # that both have met
    left_out: int  # that only one of them has met
    seeds: tuple[int, ...]  # that both have; empty: none, and each one's seeds are averaged
    confidence: float
    metrics: tuple[Metric, ...]


def pairs(evaluated: Sequence[Evaluated]) -> tuple[list[TaskPair], list[str]]:
    """Return every later experiment against the first one, task by task; and sentences on what cannot be compared."""
    first, *others = evaluated
    made, notes = list[TaskPair](), list[str]()
    for second in others:
        for task in first.tasks:
            trouble = _trouble(first, second, task)
            if trouble is None:
                made.append(_pair(first, second, task))
            else:
                notes.append(trouble)
        notes += [f"{first.name} has no scores of {task}." for task in second.tasks if task not in first.tasks]
    return made, list(dict.fromkeys(notes))


def _trouble(first: Evaluated, second: Evaluated, task: str) -> str | None:
    if task not in second.tasks:
        return f"{second.name} has no scores of {task}."
    if not set(first.problems(task)) & set(second.problems(task)):
        return f"{first.name} and {second.name} share no problem of {task}."
    one, other = (each.evaluations[task][each.seeds(task)[0]].summary for each in (first, second))
    differing = [name for name in SAME_CONTRACT if one[name] != other[name]]
    if differing:
        return (
            f"{first.name} and {second.name} have scored {task} with another {' and '.join(differing)}: give both the same "
            "evaluation.scoring, and run the stage score."
        )
    return None


def _pair(first: Evaluated, second: Evaluated, task: str) -> TaskPair:
    summary = first.evaluations[task][first.seeds(task)[0]].summary
    resampling = Resampling(confidence=summary["confidence"], **summary["bootstrap"])
    seeds = tuple(seed for seed in first.seeds(task) if seed in second.seeds(task))
    theirs = set(second.problems(task))
    shared = [problem for problem in first.problems(task) if problem in theirs]
    return TaskPair(
        task=task,
        first=first.name,
        second=second.name,
        problems=len(shared),
        left_out=len(first.problems(task)) + len(theirs) - 2 * len(shared),
        seeds=seeds,
        confidence=resampling.confidence,
        metrics=tuple(_metrics(first, second, task, seeds, shared, resampling)),
    )


def _metrics(
    first: Evaluated,
    second: Evaluated,
    task: str,
    seeds: Sequence[int],
    shared: Sequence[Problem],
    resampling: Resampling,
) -> Iterator[Metric]:
    ones, others = (_values(each, task, seeds, shared) for each in (first, second))
    for name in ones:
        if name in others and name != "pass_at_1":  # that is mean@k
            yield Metric(
                name=name,
                first=_estimate(name, ones[name], seeds, resampling),
                second=_estimate(name, others[name], seeds, resampling),
                difference=paired_difference(ones[name], others[name], resampling),
            )


def _estimate(name: str, values: Floats, seeds: Sequence[int], resampling: Resampling) -> Estimate:
    """Return the estimate as in the report: Wilson's interval for the greedy accuracies of one seed, else the bootstrap."""
    if name in PROPORTIONS and len(seeds) == 1:
        return wilson(int(values.sum()), values.size, resampling.confidence)
    return bootstrap(values, resampling)


def _values(evaluated: Evaluated, task: str, seeds: Sequence[int], shared: Sequence[Problem]) -> dict[str, Floats]:
    """Return each metric on the shared problems, [seeds, problems]; without shared seeds the mean over one's own, [1, problems]."""
    place = {problem: number for number, problem in enumerate(evaluated.problems(task))}
    columns = [place[problem] for problem in shared]
    by_seed = evaluated.evaluations[task]
    values = [values_per_problem(by_seed[seed].outcomes) for seed in seeds or evaluated.seeds(task)]
    stacked = {name: np.stack([each[name][columns] for each in values]) for name in values[0]}
    return stacked if seeds else {name: matrix.mean(axis=0, keepdims=True) for name, matrix in stacked.items()}
