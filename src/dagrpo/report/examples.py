"""Problems whose scores changed most, with a greedy completion of both policies.

A fixed rule chooses them from the scores alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dagrpo.core.escape import visible
from dagrpo.core.trajectory import GREEDY
from dagrpo.evaluation.statistics import Floats
from dagrpo.report.attempt import LONGEST_TEXT, Attempt, attempt_of
from dagrpo.report.inputs import Inputs, Variant

MOST_CHANGES = 10  # problems listed in each direction


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemChange:
    """Shares of correct answers to one problem, over all completions and seeds."""

    index: int  # row of test.parquet
    question: str
    ground_truth: str
    base: float
    trained: float

    @property
    def change(self) -> float:
        return self.trained - self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """The greedy completions of both policies on one problem, of the first seed."""

    problem: ProblemChange
    pictures: tuple[str, ...]  # data URIs
    base: Attempt
    trained: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExamples:
    """The examples of one task."""

    gained: Sequence[ProblemChange]  # greatest gain first
    lost: Sequence[ProblemChange]  # greatest loss first
    best: Sequence[Example]  # solved by the trained policy, least often by the base policy
    worst: Sequence[Example]  # not solved by the trained policy, most often by the base policy


def examples(inputs: Inputs, task: str, count: int) -> TaskExamples:
    """Choose `count` of the best and of the worst completions, and list the problems that changed most."""
    changes = problem_changes(inputs, task)
    falling = sorted(changes, key=lambda problem: (-problem.change, -problem.trained, problem.index))
    rising = sorted(changes, key=lambda problem: (problem.change, problem.trained, problem.index))
    base, trained = (
        {row["problem_index"]: row for row in _greedy_rows(inputs, task, variant)} for variant in ("base", "trained")
    )
    best = [problem for problem in falling if trained[problem.index]["correct"]]
    worst = [problem for problem in rising if not trained[problem.index]["correct"]]

    def example(problem: ProblemChange) -> Example:
        return Example(
            problem=problem,
            pictures=inputs.pictures.of(task, problem.index),
            base=attempt_of(base[problem.index]),
            trained=attempt_of(trained[problem.index]),
        )

    return TaskExamples(
        gained=[problem for problem in falling if problem.change > 0][:MOST_CHANGES],
        lost=[problem for problem in rising if problem.change < 0][:MOST_CHANGES],
        best=[example(problem) for problem in best[:count]],
        worst=[example(problem) for problem in worst[:count]],
    )


def problem_changes(inputs: Inputs, task: str) -> list[ProblemChange]:
    """Return the change of every problem of a task, in ascending order."""
    base, trained = (_shares(inputs, task, variant) for variant in ("base", "trained"))
    rows = _greedy_rows(inputs, task, "base")
    return [
        ProblemChange(
            index=row["problem_index"],
            question=visible(row["question"], LONGEST_TEXT),
            ground_truth=visible(row["ground_truth"], LONGEST_TEXT),
            base=float(before),
            trained=float(after),
        )
        for row, before, after in zip(rows, base, trained, strict=True)
    ]


def _shares(inputs: Inputs, task: str, variant: Variant) -> Floats:
    evaluated = [inputs.evaluations[task, variant, seed].outcomes for seed in inputs.seeds]
    per_seed = [np.column_stack([each.greedy, each.sampled]).mean(axis=1) for each in evaluated]
    shares: Floats = np.mean(per_seed, axis=0)
    return shares


def _greedy_rows(inputs: Inputs, task: str, variant: Variant) -> list[dict[str, Any]]:
    rows = inputs.evaluations[task, variant, inputs.seeds[0]].scores.to_pylist()
    return sorted((row for row in rows if row["sample_index"] == GREEDY), key=lambda row: int(row["problem_index"]))
