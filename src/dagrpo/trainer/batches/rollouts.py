"""One step's graded trajectories, and the update's view of them.

step_sampler.py samples and grades them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagrpo.core.trajectory import GradedTrajectory, TokenSample, Trajectory
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.batches.sampling_mask import TokenSupport
from dagrpo.utils.distributed import World

Flags = NDArray[np.bool_]
CUT_OFF_GROUPS = "rollout/cut_off_groups"
CUT_OFF_TOKENS = "rollout/cut_off_tokens"


def version_of(finished: int) -> str:
    """Return the name that completions give to the weights after `finished` steps: the same in a resumed run."""
    return f"step_{finished}"


def steps_of(version: str) -> int:
    """Return the number of finished steps in weights of this name."""
    return int(version.removeprefix("step_"))


def spread(values: Sequence[float] | NDArray[np.float32], learned: Sequence[bool], group_size: int) -> Flags:
    """Return whether two learned trajectories of each group differ in value. [trajectories] -> [groups]

    A non-finite value differs from everything, so that the update sees it and is skipped.
    """
    table = np.asarray(values, dtype=np.float32).reshape(-1, group_size)
    counts = np.asarray(learned, dtype=np.bool_).reshape(table.shape)
    largest = np.where(counts, table, -np.inf).max(axis=1)
    smallest = np.where(counts, table, np.inf).min(axis=1)
    return np.asarray((largest > smallest) | (counts & ~np.isfinite(table)).any(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """One step's graded trajectories; those of one problem are next to each other.

    A trajectory is left out of all learning and of all means if it was excluded or nothing was sampled.
    """

    step: int  # from 0
    group_size: int  # trajectories per problem
    graded: tuple[GradedTrajectory, ...]  # [trajectories]
    rewards: Tensor  # [trajectories] float32, as the policy learns from them; permuted in the control experiment
    components: Mapping[str, Tensor]  # [trajectories] float32 each: the summands of these rewards, times their weights
    weights: Mapping[str, float] = field(default_factory=dict)  # of the components
    # [prompts] float32, of each problem's greedy completion, NaN where that is left out; None if they are not needed
    greedy_rewards: Tensor | None = None
    # [tokens] float32, of the kept trajectories; None until they are computed
    advantages: Tensor | None = None
    # [tokens] float32, of the kept trajectories; None without a teacher
    teacher_logprobs: Tensor | None = None
    several_turns: bool = False  # whether there are metrics of turns and calls: the same in all steps of a run
    functions: tuple[str, ...] = ()  # names of the functions that some problem of the run offers, sorted
    used: tuple[bool, ...] = ()  # [sampled groups], in sampling order: whether a group is in the batch
    order: tuple[
        int, ...
    ] = ()  # [prompts], the places of the batch's groups among the used ones; (): in sampling order
    tasks: tuple[str, ...] = ()  # of a mixture, in order; (): a single one
    discarded: tuple[GradedTrajectory, ...] = ()  # of the sampled groups outside the batch, in that order
    sampling_metrics: Mapping[str, float] = field(default_factory=dict)  # the same names in all steps of a run
    zero_variance_filter: bool = False  # whether groups of equal rewards are left out of the update
    grading_seconds: float = 0.0  # within the seconds of sampling; no part of a result
    partial: bool = False  # whether an earlier step may have begun attempts: the same in all steps of a run
    staleness: int | None = None  # steps since the weights that sampled them; None: training.staleness is 0
    ahead_seconds: float = 0.0  # spent on sampling beside other updates; no part of a result

    @property
    def learned(self) -> list[int]:
        """Return the indices of the trajectories that are not left out, ascending."""
        return [place for place, each in enumerate(self.graded) if each.trajectory.learned]

    @property
    def spread(self) -> Flags:
        """Return which groups have rewards that differ, so that something can be learned. [groups]"""
        learned = [each.trajectory.learned for each in self.graded]
        return spread(self.rewards.numpy(), learned, self.group_size)

    @property
    def counted(self) -> list[int]:
        """Return the indices of the kept trajectories that the update counts, ascending; the other kept ones do not take part in it."""
        has_part = self.spread | (not self.zero_variance_filter)
        return [place for place in self.learned if has_part[place // self.group_size]]

    @property
    def samples(self) -> list[tuple[int, TokenSample]]:
        """Return the token sequences of the kept trajectories, in order, each with the index of its trajectory."""
        return [
            (place, sample)
            for place in self.learned
            for sample in self.graded[place].trajectory.samples
            if sample.trained
        ]

    @property
    def logprobs(self) -> NDArray[np.float64]:
        """Return the engine's logprobs of all tokens that the policy wrote in the kept trajectories. [tokens]"""
        parts = (np.asarray(sample.logprobs)[run] for _, sample in self.samples for run in sample.written)
        return np.concatenate([np.zeros(0), *parts])

    @property
    def ages(self) -> NDArray[np.int64]:
        """Return how many steps ago the weights that sampled each token were those that sample this step. [tokens], as `logprobs`"""
        newest = self.step - (self.staleness or 0)
        runs = [
            run
            for _, sample in self.samples
            for run in (*sample.earlier, (sample.weight_version, sample.trained - sum(n for _, n in sample.earlier)))
        ]
        of_runs = np.array([newest - steps_of(version) for version, _ in runs], np.int64)
        return of_runs.repeat([tokens for _, tokens in runs])

    @property
    def attempts(self) -> list[Trajectory]:
        """Return every finished trajectory of the step, the discarded ones last."""
        return [each.trajectory for each in (*self.graded, *self.discarded)]

    def batch(self) -> Batch:
        """Return the data that the update reads."""
        places = [place for place, _ in self.samples]
        counted = set(self.counted)
        samples = [sample for _, sample in self.samples]
        return Batch(
            sequences=TokenSequences.of(
                [s.token_ids for s in samples],
                [s.loss_mask for s in samples],
                [self.graded[place].trajectory.prompt.picture_files for place in places],
            ),
            trajectories=torch.tensor(places),
            rollout_logprobs=torch.from_numpy(self.logprobs.astype(np.float32)),
            positive=torch.tensor([self.graded[place].score.correct is True for place in places]),
            counted=torch.tensor([place in counted for place in places]),
            support=TokenSupport.of([ids for sample in samples for ids in sample.support]),
            teacher_logprobs=self.teacher_logprobs,
        )

    @property
    def lengths(self) -> list[int]:
        """Return the number of tokens that the policy wrote, 0 for a trajectory that is left out. [trajectories]"""
        return [each.trajectory.tokens if each.trajectory.learned else 0 for each in self.graded]

    @property
    def trajectory_advantages(self) -> list[float]:
        """Return the mean advantage over each trajectory's tokens, 0 if it is left out. [trajectories]"""
        assert self.advantages is not None
        parts = torch.split(self.advantages, self.lengths)
        return [float(part.double().mean()) if len(part) else 0.0 for part in parts]


def broadcast_batch(rollouts: Rollouts | None, world: World) -> Batch:
    """Return, in every rank, the data of rank 0's rollouts that the update reads."""
    batch = None if rollouts is None else rollouts.batch()
    if batch is not None and world.size == 1:
        return batch
    return Batch.from_tensors(world.broadcast_tensors(None if batch is None else batch.tensors()))
