"""Where the trainer's rollouts come from: problems drawn, sampled by the engine, graded.

Synchronous: the rollouts of a step are of the very policy that the step updates (staleness 0).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagrpo.params.reward import Reward
from dagrpo.params.rollout import Rollout
from dagrpo.params.training import Training
from dagrpo.rewards.components import COMPONENTS
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.agents import OWN_LOOP
from dagrpo.rollout.collect import collect, grade
from dagrpo.rollout.engine.interface import RolloutEngine
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.rollout.prompts import problems_of_step
from dagrpo.rollout.sampling import training_sampling
from dagrpo.rollout.seeds import sampling_seed
from dagrpo.rollout.trajectory import GradedTrajectory, Problem, TokenSample
from dagrpo.trainer import gates
from dagrpo.trainer.gates import diversity
from dagrpo.trainer.packing import RolloutBatch, TokenSequences


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRollouts:
    """One step's graded trajectories; those of one problem are next to each other.

    A trajectory is left out of everything that is learned, and of all means, when it was excluded or nothing was sampled.
    """

    step: int  # from 0
    group_size: int  # trajectories per problem
    graded: tuple[GradedTrajectory, ...]  # [trajectories]
    rewards: Tensor  # [trajectories] float32, what the policy learns from; not the scores' own where they are permuted
    components: Mapping[str, Tensor]  # [trajectories] float32 each: the summands of these rewards, times their weights
    advantages: Tensor | None = (
        None  # [tokens] float32, of the trajectories that are kept; None until they are computed
    )
    several_turns: bool = False  # whether there are figures of turns and calls: the same in all steps of a run
    functions: tuple[str, ...] = ()  # names of those that some problem of the run offers, sorted

    @property
    def kept(self) -> list[int]:
        """The places of the trajectories that are not left out, rising."""
        return [place for place, each in enumerate(self.graded) if each.trajectory.learned]

    @property
    def samples(self) -> list[tuple[int, TokenSample]]:
        """The token sequences of the trajectories that are kept, in order, each with the place of its trajectory."""
        return [
            (place, sample)
            for place in self.kept
            for sample in self.graded[place].trajectory.samples
            if any(sample.loss_mask)
        ]

    @property
    def logprobs(self) -> list[float]:
        """The engine's, of all tokens that the policy wrote in those. [tokens]"""
        return list(itertools.chain.from_iterable(sample.completion_logprobs for _, sample in self.samples))

    def batch(self) -> RolloutBatch:
        """What the update reads of them."""
        places = [place for place, _ in self.samples]
        samples = [sample for _, sample in self.samples]
        return RolloutBatch(
            sequences=TokenSequences.of([s.token_ids for s in samples], [s.loss_mask for s in samples]),
            trajectories=torch.tensor(places),
            rollout_logprobs=torch.tensor(self.logprobs, dtype=torch.float32),
            positive=torch.tensor([self.graded[place].score.correct is True for place in places]),
        )

    @property
    def lengths(self) -> list[int]:
        """Tokens that the policy wrote, 0 where the trajectory is left out. [trajectories]"""
        return [each.trajectory.tokens if each.trajectory.learned else 0 for each in self.graded]

    @property
    def trajectory_advantages(self) -> list[float]:
        """The mean over each trajectory's tokens, 0 where it is left out. [trajectories]"""
        assert self.advantages is not None
        parts = torch.split(self.advantages, self.lengths)
        return [float(part.double().mean()) if len(part) else 0.0 for part in parts]


def function_names(problems: Sequence[Problem]) -> tuple[str, ...]:
    """The functions that some problem offers, sorted."""
    return tuple(sorted({tool["function"]["name"] for problem in problems for tool in problem.tools}))


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
        training: Training,
        seed: int,
    ) -> None:
        self._engine = engine
        self._agent = agent
        self._max_excluded = rollout.agent.max_excluded
        self._grader = grader
        self._problems = problems
        self._functions = function_names(problems)
        self._several_turns = rollout.agent.name != OWN_LOOP or any(p.tools or p.example.interaction for p in problems)
        self._sampling = training_sampling(rollout, training.samples_per_prompt)
        self._reward = reward
        self._training = training
        self._seed = seed

    def next(self, step: int) -> StepRollouts:
        """The rollouts of the step numbered from 0.

        ServerError when the engine fails. UserError: no ground truth, or trajectories from which nothing can be learned.
        """

        def seed_of(position: int, sample: int) -> int:
            return sampling_seed(self._seed, "rollout", step, position, sample)

        problems = problems_of_step(self._problems, step, self._training, self._seed)
        trajectories = collect(problems, self._sampling, seed_of, engine=self._engine, agent=self._agent)
        gates.require_usable(trajectories, self._max_excluded, step + 1)
        diversity.require_independent(trajectories, self._sampling, self._training, step + 1)
        graded = grade(trajectories, self._reward, self._sampling.max_new_tokens, self._grader)
        order = self._order(step, np.array([trajectory.learned for trajectory in trajectories]))
        rewards = np.array([each.score.reward for each in graded], dtype=np.float32)
        return StepRollouts(
            step=step,
            group_size=self._training.samples_per_prompt,
            graded=tuple(graded),
            rewards=torch.from_numpy(rewards[order]),
            components={name: torch.from_numpy(values[order]) for name, values in self._components(graded).items()},
            several_turns=self._several_turns,
            functions=self._functions,
        )

    def _order(self, step: int, learned: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Whose reward each trajectory gets: its own; in the control experiment, that of another one that is kept."""
        order = np.arange(len(learned))
        if self._reward.permuted:
            order[learned] = np.random.default_rng([self._seed, step, 1]).permutation(order[learned])
        return order

    def _components(self, graded: Sequence[GradedTrajectory]) -> dict[str, NDArray[np.float32]]:
        """The summands of the scores' rewards."""
        weights = {name: config.weight for name, config in self._reward.components.items() if config.weight}
        labels = {name: COMPONENTS.label(name) for name in weights}
        return {
            labels[name]: np.array([weight * each.score.components[labels[name]] for each in graded], dtype=np.float32)
            for name, weight in weights.items()
        }
