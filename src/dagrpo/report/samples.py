"""Choice of the attempts that the report, `dagrpo show` and MLflow display.

Fixed rules choose, never a person: the highest and lowest rewards of a table, evenly spaced ranks, and
for training over time prompts that were sampled repeatedly, with their steps as far apart as possible. If no prompt repeats, as
in a run of less than an epoch, different problems of one kind take their place; that rule reads names alone, never rewards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dagrpo.report.inputs import Inputs
from dagrpo.report.rollouts import problems_of_steps
from dagrpo.report.splits import TRAINING

MOST_STEPS = 4  # of one series: the first, the last, and some between
ORDERED_BY = ("problem_index", "turns", "reward", "correct")
Problem = tuple[str, int]  # task, row of the split


def evenly(values: Sequence[int], count: int) -> list[int]:
    """Pick up to `count` of the values evenly, including the first and, from two on, the last."""
    positions = np.linspace(0, len(values) - 1, min(count, len(values))).round().astype(int)
    return [values[position] for position in dict.fromkeys(positions.tolist())]


def ranked(table: pa.Table) -> list[int]:
    """Return the positions of a table's attempts, best first; among equals those of more turns first.

    The reward orders; the verdict does if the table has no rewards.
    """
    worth, turns, _ = _keys(table)
    return sorted(range(table.num_rows), key=lambda position: (-worth[position], -turns[position]))


def best_and_worst(table: pa.Table, best: int, worst: int) -> tuple[list[int], list[int]]:
    """Return the positions of the best attempts, best first, and of the worst, worst first.

    Each prompt once as long as there are others, and each attempt at most once; among equals those of more turns come first.
    """
    worth, turns, problems = _keys(table)
    rising = sorted(range(table.num_rows), key=lambda position: (worth[position], -turns[position]))
    highest = _of_different_problems(ranked(table), problems, best)
    return highest, _of_different_problems([each for each in rising if each not in highest], problems, worst)


def _keys(table: pa.Table) -> tuple[list[float], list[int], list[int]]:
    rows = table.select([name for name in ORDERED_BY if name in table.column_names]).to_pylist()
    rewards = [row.get("reward") for row in rows]
    worth = [
        float(row.get("correct") or 0 if reward is None else reward) for row, reward in zip(rows, rewards, strict=True)
    ]
    return worth, [int(row.get("turns", 1)) for row in rows], [int(row["problem_index"]) for row in rows]


def _of_different_problems(order: Sequence[int], problems: Sequence[int], count: int) -> list[int]:
    seen: set[int] = set()
    first: list[int] = []
    others: list[int] = []
    for position in order:
        (others if problems[position] in seen else first).append(position)
        seen.add(problems[position])
    return (first + others)[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Problems sampled at several steps; `problems` and `steps` correspond by index."""

    steps: tuple[int, ...]  # from 1, rising
    problems: tuple[Problem, ...]
    kind: str | None  # of the problems; None: all training prompts are of one kind

    @property
    def is_one_prompt(self) -> bool:
        """True if each of several steps sampled the same prompt."""
        return len(self.steps) > 1 and len(set(self.problems)) == 1


def series_of_training(inputs: Inputs, seed: int, count: int) -> list[Series]:
    """Choose up to `count` series of one seed's training."""
    steps = problems_of_steps(inputs, seed)
    kinds = _kinds(inputs, steps)
    return _of_repeated_prompts(steps, kinds, count) or _of_same_kinds(steps, kinds, count)


def _kinds(inputs: Inputs, steps: Sequence[Sequence[Problem]]) -> Mapping[Problem, str]:
    """Return the kind of every sampled problem; {} if the split does not distinguish kinds."""
    sampled = sorted({problem for problems in steps for problem in problems})
    kinds = inputs.kinds.of(TRAINING, [row for _, row in sampled])
    return {} if kinds is None else dict(zip(sampled, kinds, strict=True))


def _of_repeated_prompts(steps: Sequence[Sequence[Problem]], kinds: Mapping[Problem, str], count: int) -> list[Series]:
    """Return series of prompts sampled more than once, those with the most steps between first and last first."""
    occurrences: dict[Problem, list[int]] = {}
    for step, problems in enumerate(steps, start=1):
        for problem in problems:
            occurrences.setdefault(problem, []).append(step)
    repeated = [(problem, at) for problem, at in occurrences.items() if len(at) > 1]
    repeated.sort(key=lambda each: (each[1][0] - each[1][-1], -len(each[1]), each[0]))
    series = []
    for problem, at in repeated[:count]:
        chosen = evenly(at, MOST_STEPS)
        series.append(Series(steps=tuple(chosen), problems=(problem,) * len(chosen), kind=kinds.get(problem)))
    return series


def _of_same_kinds(steps: Sequence[Sequence[Problem]], kinds: Mapping[Problem, str], count: int) -> list[Series]:
    """Return one series per kind, then a second per kind, and so on: the kind's first problem at steps far apart."""
    names: list[str | None] = [*sorted(set(kinds.values()))] or [None]
    series = []
    for number in range(count):
        kind, position = names[number % len(names)], number // len(names)
        problem_at = {
            step: own[position]
            for step, problems in enumerate(steps, start=1)
            if len(own := [problem for problem in problems if kinds.get(problem) == kind]) > position
        }
        if chosen := evenly(sorted(problem_at), MOST_STEPS):
            problems = tuple(problem_at[step] for step in chosen)
            series.append(Series(steps=tuple(chosen), problems=problems, kind=kind))
    return series
