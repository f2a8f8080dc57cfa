"""Rank 0's part of a step: sample, grade, evaluate.

open_driver.py opens it; trainer/batches/prefetch.py samples while the policy is updated.
"""

from dataclasses import dataclass

from dagrpo.engine.interface import RolloutEngine
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.trainer.batches.prefetch import Ahead, Untrained, version_of
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.batches.step_sampler import StepSampler
from dagrpo.trainer.config import Training
from dagrpo.trainer.held_out import HeldOutEvaluations
from dagrpo.trainer.history import Clock
from dagrpo.trainer.teacher import Teacher
from dagrpo.utils.console import Advance


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMaker:
    """Source of batches, which are sampled with the weights that the engine holds."""

    engine: RolloutEngine
    teacher: Teacher | None
    agent: OpenAgent
    buffer: StepSampler

    def make(self, step: int, clock: Clock) -> Rollouts:
        """Return the rollouts of `step` (0-based), with the teacher's logprobs if there is a teacher."""
        rollouts = self.buffer.next(step)
        clock.lap("rollout")
        if self.teacher is None:
            return rollouts
        scored = self.teacher.scored(rollouts)
        clock.lap("teacher")
        return scored

    def ahead(self, training: Training, finished: int, untrained: Untrained) -> Ahead:
        """Return the batches of a run that resumes after `finished` steps. `untrained`: the saved ones of its state."""
        return Ahead(
            self.make,
            lambda: self.buffer.drawing.saved,
            staleness=training.staleness,
            steps=training.steps,
            first=finished,
            interrupt=self._interrupt,
            untrained=untrained,
        )

    def _interrupt(self) -> None:
        """Interrupt everything that `make`, in another thread, waits for."""
        self.agent.interrupt()
        self.engine.interrupt()
        if self.teacher is not None:
            self.teacher.engine.interrupt()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankZero:
    """Objects that only rank 0 has during the steps."""

    engine: RolloutEngine
    buffer: StepSampler
    ahead: Ahead
    grader: Grader
    held_out: HeldOutEvaluations
    bar: Advance

    def evaluate(self, finished: int, clock: Clock) -> None:
        """Let the policy after `finished` steps answer held-out problems, if training.evaluate_every asks for it."""
        self.held_out.evaluate(finished, self.engine, self.grader)
        if self.held_out.is_on:
            clock.lap("held_out")

    def rollouts(self, step: int, clock: Clock) -> Rollouts:
        """Return the rollouts of `step` (0-based). The engine must hold the weights after `step` updates."""
        self.evaluate(step, clock)
        self.ahead.start(step)
        rollouts = self.ahead.take(step, clock)
        if rollouts.staleness is not None:
            clock.lap("rollout")
        return rollouts

    def make_room(self, clock: Clock) -> None:
        """Release the engine's GPU memory before an update, if runtime.engine.release_memory asks for that."""
        self.engine.release_memory()
        clock.lap("hand_over")  # part of the weight sync, like the engine's return to the GPU

    def make_up(self, finished: int) -> None:
        """Sample the missing batches of weights older than those after `finished` steps."""
        for step in self.ahead.missing(finished):
            steps, weights = self.ahead.sampler(step)
            self.engine.load(weights, version_of(steps))
            self.ahead.make_up(step)
