"""Selection of the training attempts that the report shows over steps.

Prompts sampled more than once are chosen, with their steps as far apart as possible. If no prompt was, as in a run of less than
an epoch, different problems of one kind take their place. These rules use the problems' names alone, never rewards, so that the
choice cannot flatter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dagrpo.report.inputs import Inputs
from dagrpo.report.pictures import TRAINING
from dagrpo.report.rollouts import problems_of_steps

MOST_STEPS = 4  # of one series: the first, the last, and some between
Problem = tuple[str, int]  # task, row of the split


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Problems met at several steps; `problems` and `steps` correspond by index."""

    steps: tuple[int, ...]  # from 1, rising
    problems: tuple[Problem, ...]
    kind: str | None  # of the problems; None: all training prompts are of one kind

    @property
    def is_one_prompt(self) -> bool:
        """True if each of several steps sampled the same prompt."""
        return len(self.steps) > 1 and len(set(self.problems)) == 1


def chosen_series(inputs: Inputs, seed: int, count: int) -> list[Series]:
    """Choose up to `count` series of one seed's training."""
    steps = problems_of_steps(inputs, seed)
    kinds = _kinds(inputs, steps)
    return _of_same_prompts(steps, kinds, count) or _of_same_kinds(steps, kinds, count)


def _kinds(inputs: Inputs, steps: Sequence[Sequence[Problem]]) -> Mapping[Problem, str]:
    """Return the kind of every sampled problem; {} if the split does not distinguish kinds."""
    drawn = sorted({problem for problems in steps for problem in problems})
    kinds = inputs.kinds.of(TRAINING, [row for _, row in drawn])
    return {} if kinds is None else dict(zip(drawn, kinds, strict=True))


def _of_same_prompts(steps: Sequence[Sequence[Problem]], kinds: Mapping[Problem, str], count: int) -> list[Series]:
    """Return series of prompts sampled more than once, those with the most steps between first and last first."""
    occurrences: dict[Problem, list[int]] = {}
    for step, problems in enumerate(steps, start=1):
        for problem in problems:
            occurrences.setdefault(problem, []).append(step)
    again = [(problem, found) for problem, found in occurrences.items() if len(found) > 1]
    again.sort(key=lambda each: (each[1][0] - each[1][-1], -len(each[1]), each[0]))
    series = []
    for problem, found in again[:count]:
        shown = spread(found, MOST_STEPS)
        series.append(Series(steps=tuple(shown), problems=(problem,) * len(shown), kind=kinds.get(problem)))
    return series


def _of_same_kinds(steps: Sequence[Sequence[Problem]], kinds: Mapping[Problem, str], count: int) -> list[Series]:
    """Return one series per kind, then a second per kind, and so on: the kind's first problem at steps far apart."""
    names: list[str | None] = [*sorted(set(kinds.values()))] or [None]
    series = []
    for number in range(count):
        kind, place = names[number % len(names)], number // len(names)
        found = {
            step: own[place]
            for step, problems in enumerate(steps, start=1)
            if len(own := [problem for problem in problems if kinds.get(problem) == kind]) > place
        }
        if shown := spread(sorted(found), MOST_STEPS):
            series.append(Series(steps=tuple(shown), problems=tuple(found[step] for step in shown), kind=kind))
    return series


def spread(values: Sequence[int], most: int) -> list[int]:
    """Pick up to `most` of the values evenly, including the first and the last."""
    places = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return [values[place] for place in dict.fromkeys(places.tolist())]
