"""What only rank 0 has while steps are taken, and what it does with it: sample, grade, evaluate.

Not how it is opened: see open_rank_zero.py. Not what is sampled while the policy is updated: see ahead.py.
"""

from dataclasses import dataclass

from dagrpo.console import Advance
from dagrpo.params.training import Training
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.engine.interface import RolloutEngine
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.trainer.ahead import Ahead, Untrained, version_of
from dagrpo.trainer.buffer import Buffer
from dagrpo.trainer.held_out import HeldOutEvaluations
from dagrpo.trainer.record import Clock
from dagrpo.trainer.step_rollouts import StepRollouts
from dagrpo.trainer.teacher import Teacher


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMaker:
    """Makes batches with the weights that the engine holds."""

    engine: RolloutEngine
    teacher: Teacher | None
    agent: OpenAgent
    buffer: Buffer

    def make(self, step: int, clock: Clock) -> StepRollouts:
        """That of the step numbered from 0, with the teacher's logprobs where there is one."""
        rollouts = self.buffer.next(step)
        clock.lap("rollout")
        if self.teacher is None:
            return rollouts
        scored = self.teacher.scored(rollouts)
        clock.lap("teacher")
        return scored

    def ahead(self, training: Training, finished: int, untrained: Untrained) -> Ahead:
        """The batches of a run that goes on after so many steps. `untrained`: what its state has kept."""
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
        """End whatever `make`, in another thread, waits for."""
        self.agent.interrupt()
        self.engine.interrupt()
        if self.teacher is not None:
            self.teacher.engine.interrupt()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankZero:
    """What only rank 0 has while steps are taken."""

    engine: RolloutEngine
    buffer: Buffer
    ahead: Ahead
    grader: Grader
    held_out: HeldOutEvaluations
    bar: Advance

    def evaluate(self, finished: int, clock: Clock) -> None:
        """Have the policy after so many steps answer held-out problems, where training.evaluate_every asks for it."""
        self.held_out.evaluate(finished, self.engine, self.grader)
        if self.held_out.is_on:
            clock.lap("held_out")

    def rollouts(self, step: int, clock: Clock) -> StepRollouts:
        """Those of the step numbered from 0. The engine holds the weights after so many steps."""
        self.evaluate(step, clock)
        self.ahead.start(step)
        rollouts = self.ahead.take(step, clock)
        if rollouts.staleness is not None:
            clock.lap("rollout")
        return rollouts

    def make_room(self, clock: Clock) -> None:
        """Have the engine leave its GPU for an update, where runtime.engine.release_memory asks for that."""
        self.engine.release_memory()
        clock.lap("hand_over")  # which the engine's coming back is part of, too

    def make_up(self, finished: int) -> None:
        """Sample the batches that an earlier execution has left to weights older than those after so many steps."""
        for step in self.ahead.missing(finished):
            steps, weights = self.ahead.sampler(step)
            self.engine.load(weights, version_of(steps))
            self.ahead.make_up(step)
