"""Where the trainer's rollouts come from: problems drawn, sampled by the engine, graded.

Synchronous: the rollouts of a step are of the very policy that the step updates (staleness 0).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dagrpo.algorithms.advantages import advantages_of
from dagrpo.params.plugged import Choice
from dagrpo.params.reward import Reward
from dagrpo.params.rollout import Rollout
from dagrpo.params.training import Training
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.collect import collect, grade
from dagrpo.rollout.engine.interface import RolloutEngine
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.rollout.prompts import problems_of_step
from dagrpo.rollout.sampling import training_sampling
from dagrpo.rollout.seeds import sampling_seed
from dagrpo.rollout.trajectory import GradedTrajectory, Problem, TokenSample
from dagrpo.trainer.packing import RolloutBatch, TokenSequences


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRollouts:
    """One step's graded trajectories; those of one problem are next to each other."""

    step: int  # from 0
    group_size: int  # trajectories per problem
    graded: tuple[GradedTrajectory, ...]  # [trajectories]
    rewards: Tensor  # [trajectories] float32, what the policy learns from; not the scores' own where they are permuted
    advantages: Tensor  # [trajectories] float32, of these rewards

    @property
    def samples(self) -> list[TokenSample]:
        """The token sequence of each trajectory. [trajectories]"""
        assert all(len(each.trajectory.samples) == 1 for each in self.graded), "a single turn has one sample"
        return [each.trajectory.samples[0] for each in self.graded]

    @property
    def logprobs(self) -> list[float]:
        """The engine's, of all tokens that the policy wrote. [tokens]"""
        return list(itertools.chain.from_iterable(sample.completion_logprobs for sample in self.samples))

    def batch(self) -> RolloutBatch:
        """What the update reads of them."""
        samples = self.samples
        return RolloutBatch(
            sequences=TokenSequences.of([s.token_ids for s in samples], [s.loss_mask for s in samples]),
            rollout_logprobs=torch.tensor(self.logprobs, dtype=torch.float32),
            advantages=self.advantages,
        )


class Buffer:
    """Makes the rollouts of each step; a function of the run's seed, the step and the weights that the engine holds.

    It keeps nothing, so that a resumed run needs no saved position.
    """

    def __init__(
        self,
        *,
        engine: RolloutEngine,
        agent: OpenAgent,
        grader: Grader,
        problems: Sequence[Problem],
        rollout: Rollout,
        reward: Reward,
        advantage: Choice,
        training: Training,
        seed: int,
    ) -> None:
        self._engine = engine
        self._agent = agent
        self._grader = grader
        self._problems = problems
        self._sampling = training_sampling(rollout, training.samples_per_prompt)
        self._reward = reward
        self._advantage = advantage
        self._training = training
        self._seed = seed

    def next(self, step: int) -> StepRollouts:
        """The rollouts of the step numbered from 0. ServerError when the engine fails; UserError: no ground truth."""

        def seed_of(position: int, sample: int) -> int:
            return sampling_seed(self._seed, "rollout", step, position, sample)

        problems = problems_of_step(self._problems, step, self._training, self._seed)
        trajectories = collect(problems, self._sampling, seed_of, engine=self._engine, agent=self._agent)
        graded = grade(trajectories, self._reward, self._sampling.max_new_tokens, self._grader)
        rewards = self._rewards(step, graded)
        return StepRollouts(
            step=step,
            group_size=self._training.samples_per_prompt,
            graded=tuple(graded),
            rewards=rewards,
            advantages=advantages_of(rewards, self._training.samples_per_prompt, self._advantage),
        )

    def _rewards(self, step: int, graded: Sequence[GradedTrajectory]) -> Tensor:
        """The scores' rewards; in the control experiment, shuffled among the step's trajectories."""
        rewards = np.array([each.score.reward for each in graded], dtype=np.float32)
        if self._reward.permuted:
            rewards = np.random.default_rng([self._seed, step, 1]).permutation(rewards)
        return torch.from_numpy(rewards)
