"""When the groups of a round make a full batch: they are graded as they finish, while the engine still writes others.

Not here: how a round ends early (rollout/until_full.py), and which of its groups are in the batch (groups.py).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from dagrpo.params.training import Training
from dagrpo.rollout.trajectory import GREEDY, GradedTrajectory, Trajectory
from dagrpo.trainer.groups import has_spread

T = TypeVar("T")
Grade = Callable[[Sequence[Trajectory]], list[GradedTrajectory]]


class FullBatch:
    """Grades the groups of one round, and counts those that will do for the batch."""

    def __init__(self, before: Sequence[GradedTrajectory], grade: Grade, training: Training) -> None:
        """`before`: what earlier rounds of the step have given."""
        self._grade = grade
        self._training = training
        self._missing = training.prompts_per_step - int(has_spread(before, training).sum())
        self._graded: dict[int, list[GradedTrajectory]] = {}  # by the group's position in the round
        self._greedy: dict[int, list[Trajectory]] = {}  # one, or none

    def judge(self, position: int, group: Sequence[Trajectory]) -> None:
        """Grade a finished group. A greedy attempt is graded later, where it is known to be of use."""
        sampled = [trajectory for trajectory in group if trajectory.sample_index != GREEDY]
        graded = self._grade(sampled)
        self._greedy[position] = [trajectory for trajectory in group if trajectory.sample_index == GREEDY]
        self._missing -= int(has_spread(graded, self._training).sum())
        self._graded[position] = graded

    @property
    def is_full(self) -> bool:
        """Whether the batch has all of its groups."""
        return self._missing <= 0

    @property
    def graded(self) -> list[GradedTrajectory]:
        """Group by group in the order of drawing, however they have finished."""
        return _in_order(self._graded)

    @property
    def greedy(self) -> list[Trajectory]:
        """The greedy attempts of the same groups, where there are any."""
        return _in_order(self._greedy)


def _in_order(groups: Mapping[int, Sequence[T]]) -> list[T]:
    return [*itertools.chain.from_iterable(groups[position] for position in sorted(groups))]
