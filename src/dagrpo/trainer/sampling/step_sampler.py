"""Rollouts of a step: prompts sampled, completed by the engine and graded.

They are made for one step at a time, by the weights that the engine holds. prefetch.py decides when, and by how many steps the
policy is ahead of these weights.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagrpo.core.experiment import task_metric
from dagrpo.core.trajectory import GREEDY, GradedTrajectory, Prompt, Trajectory
from dagrpo.engine.interface import RolloutEngine
from dagrpo.rewards.components import COMPONENTS
from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader, grade
from dagrpo.rollout.agents import OWN_LOOP
from dagrpo.rollout.config import Rollout, training_sampling
from dagrpo.rollout.early_stop import CutOff, EarlyStop, Parts
from dagrpo.rollout.mixture import evenly_ordered
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.rollout.schedule import attempts_at, groups_of, in_lockstep
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.sampling.dynamic_sampling import FullBatch, figures, missing_groups, prompts_to_draw, used_groups
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler, SampledPrompt
from dagrpo.trainer.sampling.teacher import Teacher
from dagrpo.trainer.sampling.usable import require_independent, require_usable
from dagrpo.trainer.state.records import keeping_attempts


@dataclass(slots=True, kw_only=True)
class _Attempts:
    """Attempts of a step so far, prompt by prompt in sampling order, with the number of rounds."""

    graded: list[GradedTrajectory] = field(default_factory=list)
    greedy: list[Trajectory] = field(default_factory=list)  # not graded yet, and not counted
    rounds: int = 0
    drawn: int = 0  # prompts, also those whose groups were cut off
    cut_off: list[CutOff] = field(default_factory=list)


def function_names(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """Return the names of all functions that some problem offers, sorted."""
    return tuple(sorted({tool["function"]["name"] for prompt in prompts for tool in prompt.tools}))


def _may_have_turns(prompt: Prompt) -> bool:
    return bool(prompt.tools or prompt.row.interaction)


@dataclass(kw_only=True)
class StepSampler:
    """Source of each step's rollouts.

    In lockstep they are a function of the run's seed, the step, the weights that the engine holds and the state of the prompt
    sampler (prompt_sampler.py).
    """

    engine: RolloutEngine
    agent: OpenAgent
    grader: Grader
    prompts: Sequence[Prompt]
    prompt_sampler: PromptSampler
    rollout: Rollout
    reward: Reward
    training: Training
    seed: int
    state: Path  # folder of the run's state, for a table of refused attempts
    greedy: bool = False  # also grade a greedy completion of each problem, which serves as a baseline only
    teacher: Teacher | None = None
    first: int = 0  # the next step of the prompt sampler, from 0

    def __post_init__(self) -> None:
        """Note what is the same in all steps of the run."""
        # Before each step, by its number from 0.
        self.prompt_states = {self.first: (self.prompt_sampler.saved, self.prompt_sampler.parts)}
        self._functions = function_names(self.prompts)
        self._tasks = self.prompt_sampler.tasks if len(self.prompt_sampler.tasks) > 1 else ()
        self._several_turns = self.rollout.agent.name != OWN_LOOP or any(map(_may_have_turns, self.prompts))
        sampling = training_sampling(self.rollout, self.training.samples_per_prompt, greedy=self.greedy)
        self._sampling = replace(sampling, support=self.rollout.cuts)
        self._grading_seconds = 0.0  # of the current step

    def sample(self, step: int, clock: Clock) -> Rollouts:
        """Return the rollouts of `step` (0-based), with the teacher's logprobs if there is a teacher.

        Raises ServerError if the engine fails, and UserError if a ground truth is invalid, no prompt is left, or nothing can be learned.
        """
        self._grading_seconds = 0.0
        attempts, due = _Attempts(), self.prompt_sampler.due(step)
        while attempts.rounds < self.training.dynamic_sampling.max_rounds and any(
            (counts := prompts_to_draw(attempts.graded, self.training, due)).values()
        ):
            sampled = self.prompt_sampler.draw(counts, step)
            seed_of = partial(self._seed_of, step, attempts.drawn, sampled)
            wanted = attempts_at([each.prompt for each in sampled], self._sampling, seed_of)
            if self._sampling.lockstep:
                finished = self.agent.run(in_lockstep(wanted, self._sampling, self.engine, self.agent))
                self._add_waves(attempts, finished, step)
            else:  # each group is graded as soon as it has finished; those that still run when its task has enough are cut off
                missing = missing_groups(attempts.graded, self.training, due)
                tasks = [each.prompt.row.task for each in sampled]
                full = FullBatch(missing, tasks, partial(self._grade, step), self.training)
                cuttable, parts = self._cuttable(sampled), self._parts(sampled)
                groups = EarlyStop(self._sampling, self.engine, self.agent, full, cuttable, parts)
                cut_off = self.agent.run(groups.run(groups_of(wanted, self._sampling)))
                self._add_groups(attempts, full, cut_off, sampled, step)
            attempts.rounds += 1
            attempts.drawn += len(sampled)
        rollouts = self._select_rollouts(step, attempts, due)
        clock.lap("rollout")
        if self.teacher is not None:
            rollouts = self.teacher.score(rollouts)
            clock.lap("teacher")
        needed = {
            before: each for before, each in self.prompt_states.items() if before >= step - self.training.staleness
        }
        self.prompt_states = needed | {step + 1: (self.prompt_sampler.saved, self.prompt_sampler.parts)}
        return rollouts

    def interrupt(self) -> None:
        """Interrupt everything that `sample`, in another thread, waits for."""
        self.agent.interrupt()
        self.engine.interrupt()
        if self.teacher is not None:
            self.teacher.engine.interrupt()

    def _select_rollouts(self, step: int, attempts: _Attempts, due: Mapping[str, int]) -> Rollouts:
        """Select the groups of the batch, and retire their prompts where training.retire_at asks for it."""
        graded, size = attempts.graded, self.training.samples_per_prompt
        used = used_groups(graded, self.training, step, due)
        self.prompt_sampler.retire(graded)
        in_order = np.flatnonzero(used)
        places = evenly_ordered([graded[group * size].trajectory.prompt.row.task for group in in_order])
        groups = in_order[places].tolist()
        batch = [each for group in groups for each in graded[group * size : (group + 1) * size]]
        order = self._order(step, 1, np.array([each.trajectory.learned for each in batch]))
        rewards = np.array([each.score.reward for each in batch], dtype=np.float32)
        return Rollouts(
            step=step,
            group_size=size,
            graded=tuple(batch),
            rewards=torch.from_numpy(rewards[order]),
            components={
                name: torch.from_numpy(values[order]) for name, values in self._components(step, batch).items()
            },
            weights=self._weights(step),
            greedy_rewards=self._greedy_rewards(step, [attempts.greedy[group] for group in groups])
            if self._sampling.greedy
            else None,
            several_turns=self._several_turns,
            functions=self._functions,
            used=tuple(used.tolist()),
            order=() if places == sorted(places) else tuple(places),
            discarded=tuple(itertools.compress(graded, ~used.repeat(size))),
            tasks=self._tasks,
            sampling_metrics=figures(
                used, attempts.rounds, self.prompt_sampler.retired, attempts.cut_off, self.training
            )
            | {task_metric(task, "epoch"): epochs for task, epochs in self.prompt_sampler.epochs.items() if self._tasks}
            | self.grader.metrics(self.reward),
            zero_variance_filter=self.training.zero_variance_filter,
            partial=self.training.dynamic_sampling.partial_rollouts,
            grading_seconds=self._grading_seconds,
        )

    def _seed_of(self, step: int, first: int, sampled: Sequence[SampledPrompt], position: int, sample: int) -> int:
        """Return the seed of an attempt at a problem of a round; `first`: the number of problems drawn earlier in the step."""
        if (part := sampled[position].parts.get(sample)) is not None:
            return part.seed
        return sampling_seed(self.seed, "rollout", step, first + position, sample)

    def _cuttable(self, sampled: Sequence[SampledPrompt]) -> list[int]:
        """Return the positions of the prompts whose groups may be cut off and put back."""
        most = self.training.dynamic_sampling.max_aborts
        return [position for position, each in enumerate(sampled) if each.aborts < most]

    def _parts(self, sampled: Sequence[SampledPrompt]) -> dict[int, Parts]:
        """Return, by position, the parts to continue; groups with tools or a simulated user have none, and start again."""
        if not self.training.dynamic_sampling.partial_rollouts:
            return {}
        return {position: each.parts for position, each in enumerate(sampled) if not _may_have_turns(each.prompt)}

    def _add_waves(self, attempts: _Attempts, finished: Sequence[Trajectory], step: int) -> None:
        sampled = [trajectory for trajectory in finished if trajectory.sample_index != GREEDY]
        self._require_sound([*(each.trajectory for each in attempts.graded), *sampled], step)
        attempts.graded += self._graded(step, sampled)
        self._require_sound([each.trajectory for each in attempts.graded], step)  # a model may have given no value
        attempts.greedy += [trajectory for trajectory in finished if trajectory.sample_index == GREEDY]

    def _add_groups(
        self, attempts: _Attempts, full: FullBatch, cut_off: CutOff, sampled: Sequence[SampledPrompt], step: int
    ) -> None:
        """Add the groups of a free-running round, which were graded as they finished; put back the prompts that were cut off."""
        attempts.cut_off.append(cut_off)
        finished = [each for at, each in enumerate(sampled) if at not in cut_off.positions]
        parts = {sampled[at].prompt.index: own for at, own in cut_off.parts.items()}
        self.prompt_sampler.put_back(sampled, [each.prompt.index for each in finished], parts)
        attempts.graded += full.graded
        attempts.greedy += full.greedy
        self._require_sound([each.trajectory for each in attempts.graded], step)

    def _require_sound(self, so_far: Sequence[Trajectory], step: int) -> None:
        """Raise UserError, which names a table of the attempts, if the step's samples cannot be learned from."""
        with keeping_attempts(self.state, step + 1, so_far):
            require_usable(so_far, self.rollout.agent.max_excluded, step + 1)
            require_independent(so_far, self._sampling, self.training, step + 1)

    def _graded(self, step: int, trajectories: Sequence[Trajectory]) -> list[GradedTrajectory]:
        started = time.perf_counter()
        graded = self._grade(step, trajectories)
        self._grading_seconds += time.perf_counter() - started
        return graded

    def _grade(self, step: int, trajectories: Sequence[Trajectory]) -> list[GradedTrajectory]:
        """Grade trajectories. `_graded` alone measures the time."""
        return grade(trajectories, self.reward, self.grader, step + 1)

    def _greedy_rewards(self, step: int, trajectories: Sequence[Trajectory]) -> Tensor:
        """Return each problem's greedy reward; in the control experiment another problem's, to carry no signal either. [prompts]

        A problem whose greedy completion is excluded is lost with all of its trajectories, so that the same share of them
        stops the run.
        """
        with keeping_attempts(self.state, step + 1, trajectories):
            require_usable(trajectories, self.rollout.agent.max_excluded, step + 1)
        graded = self._graded(step, trajectories)
        learned = np.array([each.trajectory.learned for each in graded])
        rewards = np.array([each.score.reward for each in graded], dtype=np.float32)
        rewards[np.isnan(rewards)] = np.inf  # wrong all the same, and distinct from one that is left out
        return torch.from_numpy(np.where(learned, rewards[self._order(step, 2, learned)], np.float32(np.nan)))

    def _order(self, step: int, draw: int, learned: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the index of the trajectory whose reward each one gets: itself, or in the control experiment another kept one."""
        order = np.arange(len(learned))
        if self.reward.permuted:
            order[learned] = np.random.default_rng([self.seed, step, draw]).permutation(order[learned])
        return order

    def _weights(self, step: int) -> dict[str, float]:
        counted = {name: config for name, config in self.reward.components.items() if config.counts}
        return {COMPONENTS.label(name): config.weight_at(step + 1) for name, config in counted.items()}

    def _components(self, step: int, graded: Sequence[GradedTrajectory]) -> dict[str, NDArray[np.float32]]:
        """Return the components of the scores' rewards by name, times their weights; 0 where an excluded trajectory has none."""
        return {
            label: np.array([weight * each.score.components.get(label, 0.0) for each in graded], dtype=np.float32)
            for label, weight in self._weights(step).items()
        }
