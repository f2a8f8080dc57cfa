"""Which attempts of training the report shows step by step: those at prompts that came again, as far apart as can be.

Where no prompt came twice, as in a run of less than an epoch, problems of one kind stand for it, each another one. The choice
is made by these rules from the names of the problems alone, never by rewards, so that it cannot flatter.
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
    """Problems met at several steps; `problems` and `steps` go together."""

    steps: tuple[int, ...]  # from 1, rising
    problems: tuple[Problem, ...]
    kind: str | None  # of the problems; None: all that training draws from are of one

    @property
    def is_one_prompt(self) -> bool:
        """Whether the same prompt came at each of the steps, and at more than one."""
        return len(self.steps) > 1 and len(set(self.problems)) == 1


def chosen_series(inputs: Inputs, seed: int, count: int) -> list[Series]:
    """Up to `count` series of one seed's training."""
    steps = problems_of_steps(inputs, seed)
    kinds = _kinds(inputs, steps)
    return _of_same_prompts(steps, kinds, count) or _of_same_kinds(steps, kinds, count)


def _kinds(inputs: Inputs, steps: Sequence[Sequence[Problem]]) -> Mapping[Problem, str]:
    """Of every problem that was drawn, where the split tells kinds apart."""
    drawn = sorted({problem for problems in steps for problem in problems})
    kinds = inputs.kinds.of(TRAINING, [row for _, row in drawn])
    return {} if kinds is None else dict(zip(drawn, kinds, strict=True))


def _of_same_prompts(steps: Sequence[Sequence[Problem]], kinds: Mapping[Problem, str], count: int) -> list[Series]:
    """Prompts that came again, those with the most steps between first and last before others."""
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
    """One series per kind, then a second one per kind, and so on: the first problem of the kind in steps far apart."""
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
    """Up to so many of the values, evenly: the first, the last, and some between."""
    places = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return [values[place] for place in dict.fromkeys(places.tolist())]
