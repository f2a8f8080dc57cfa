"""Detection of a full batch while the engine still completes groups.

Groups are graded as they finish. rollout/early_stop.py ends a round early; dynamic_sampling.py selects the groups of the batch.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from dagrpo.rollout.trajectory import GREEDY, GradedTrajectory, Trajectory
from dagrpo.trainer.batches.dynamic_sampling import has_spread
from dagrpo.trainer.config import Training

T = TypeVar("T")
Grade = Callable[[Sequence[Trajectory]], list[GradedTrajectory]]


class FullBatch:
    """Grader of the groups of one round, which counts those that qualify for the batch."""

    def __init__(self, before: Sequence[GradedTrajectory], grade: Grade, training: Training) -> None:
        """Start a round; `before`: the trajectories of the step's earlier rounds."""
        self._grade = grade
        self._training = training
        self._missing = training.prompts_per_step - int(has_spread(before, training).sum())
        self._graded: dict[int, list[GradedTrajectory]] = {}  # by the group's position in the round
        self._greedy: dict[int, list[Trajectory]] = {}  # one each, or an empty list

    def judge(self, position: int, group: Sequence[Trajectory]) -> None:
        """Grade a finished group. Its greedy attempt is graded later, once it is known to be needed."""
        sampled = [trajectory for trajectory in group if trajectory.sample_index != GREEDY]
        graded = self._grade(sampled)
        self._greedy[position] = [trajectory for trajectory in group if trajectory.sample_index == GREEDY]
        self._missing -= int(has_spread(graded, self._training).sum())
        self._graded[position] = graded

    @property
    def is_full(self) -> bool:
        """Return True if the batch has all of its groups."""
        return self._missing <= 0

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
