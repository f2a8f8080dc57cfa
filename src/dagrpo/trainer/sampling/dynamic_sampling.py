"""Selection of groups with spread for the update.

DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): a step samples more prompts until enough of its groups have spread. In a
mixture of tasks the groups of each are counted by themselves, so that its shares are those of the groups that are learned from.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import GREEDY, GradedTrajectory, Trajectory
from dagrpo.rollout.early_stop import CutOff
from dagrpo.trainer.batches.rollouts import CUT_OFF_GROUPS, CUT_OFF_TOKENS, Flags, spread
from dagrpo.trainer.config.training import Training

T = TypeVar("T")
Grade = Callable[[Sequence[Trajectory]], list[GradedTrajectory]]


def has_spread(graded: Sequence[GradedTrajectory], training: Training) -> Flags:
    """Return whether training.dynamic_sampling keeps each group because of its values. [groups]"""
    learned = [each.trajectory.learned for each in graded]
    match training.dynamic_sampling.spread_of:
        case "reward":
            values = [each.score.reward for each in graded]
        case "accuracy":
            values = [float(each.score.correct is True) for each in graded]
        case None:  # any group will do from which something can be learned
            return np.asarray(np.array(learned, dtype=np.bool_).reshape(-1, training.samples_per_prompt).any(axis=1))
    return spread(values, learned, training.samples_per_prompt)


def missing_groups(graded: Sequence[GradedTrajectory], training: Training, due: Mapping[str, int]) -> dict[str, int]:
    """Return how many groups with spread each task's part of the batch lacks; below 0 if there are more."""
    found = Counter(itertools.compress(_tasks(graded, training), has_spread(graded, training)))
    return {task: count - found[task] for task, count in due.items()}


def _tasks(graded: Sequence[GradedTrajectory], training: Training) -> list[str]:
    return [each.trajectory.prompt.row.task for each in graded[:: training.samples_per_prompt]]


def prompts_to_draw(graded: Sequence[GradedTrajectory], training: Training, due: Mapping[str, int]) -> dict[str, int]:
    """Return the number of prompts of each task in the next round, after rounds that gave `graded`; 0 where enough groups have spread."""
    oversampling = training.dynamic_sampling.oversampling
    missing = missing_groups(graded, training, due)
    return {task: math.ceil(max(count, 0) * oversampling) for task, count in missing.items()}


def used_groups(graded: Sequence[GradedTrajectory], training: Training, step: int, due: Mapping[str, int]) -> Flags:
    """Return which groups make up the batch of `step` (0-based), always as many of each task as are due. [groups]

    Of each task those with spread in sampling order and, if they are too few, the first ones without. Raises UserError if dynamic
    sampling has found none with spread.
    """
    with_spread = has_spread(graded, training)
    if training.dynamic_sampling.wants_spread and not with_spread.any():
        raise UserError(
            f"step {step + 1}: in none of {len(with_spread)} groups do samples differ in {training.dynamic_sampling.spread_of}, "
            f"and training.dynamic_sampling.max_rounds is {training.dynamic_sampling.max_rounds}: raise it or "
            "training.samples_per_prompt, or take problems that the policy neither always nor never solves "
            "(training.min_pass_rate and max_pass_rate)."
        )
    used, left = np.zeros(len(with_spread), dtype=np.bool_), Counter(due)
    tasks = _tasks(graded, training)
    for place in np.argsort(~with_spread, kind="stable").tolist():
        used[place] = left[tasks[place]] > 0
        left[tasks[place]] -= 1
    return used


def figures(used: Flags, rounds: int, retired: int, cut_off: Sequence[CutOff], training: Training) -> dict[str, float]:
    """Return metrics of a step's sampling: only those that its parameters can change.

    `retired`: prompts of the run so far; `cut_off`: by each round.
    """
    dynamic = {
        "rollout/rounds": float(rounds),
        "rollout/discarded_groups": float((~used).sum()),
        "rollout/discarded_fraction": float((~used).mean()),
    }
    groups, tokens = (sum(len(each.positions) for each in cut_off), sum(each.tokens for each in cut_off))
    cut = {CUT_OFF_GROUPS: float(groups), CUT_OFF_TOKENS: float(tokens)}
    return {
        **(dynamic if training.dynamic_sampling.is_on else {}),
        **(cut if training.dynamic_sampling.max_aborts else {}),
        **({"rollout/retired_prompts": float(retired)} if training.retire_at is not None else {}),
    }


class FullBatch:
    """Grader of the groups of one round, which counts those that qualify for the batch."""

    def __init__(self, missing: Mapping[str, int], tasks: Sequence[str], grade: Grade, training: Training) -> None:
        """Start a round; `missing`: groups of each task that earlier rounds have not found; `tasks`: of the groups, by position."""
        self._grade = grade
        self._training = training
        self._missing = Counter(missing)
        self._tasks = tasks
        self._graded: dict[int, list[GradedTrajectory]] = {}  # by the group's position in the round
        self._greedy: dict[int, list[Trajectory]] = {}  # one each, or an empty list

    def judge(self, position: int, group: Sequence[Trajectory]) -> None:
        """Grade a finished group. Its greedy attempt is graded later, once it is known to be needed."""
        sampled = [trajectory for trajectory in group if trajectory.sample_index != GREEDY]
        graded = self._grade(sampled)
        self._greedy[position] = [trajectory for trajectory in group if trajectory.sample_index == GREEDY]
        self._missing[self._tasks[position]] -= int(has_spread(graded, self._training).sum())
        self._graded[position] = graded

    def has_enough(self, position: int) -> bool:
        """Return True if the batch has all groups of the task at `position`."""
        return self._missing[self._tasks[position]] <= 0

    @property
    def graded(self) -> list[GradedTrajectory]:
        """Return the graded groups in sampling order, whatever order they finished in."""
        return _in_order(self._graded)

    @property
    def greedy(self) -> list[Trajectory]:
        """Return the greedy attempts of the graded groups, if any."""
        return _in_order(self._greedy)


def _in_order(groups: Mapping[int, Sequence[T]]) -> list[T]:
    return [*itertools.chain.from_iterable(groups[position] for position in sorted(groups))]
