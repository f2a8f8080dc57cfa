"""Source of each step's rollouts. Only rank 0 samples."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from dagrpo.engine.interface import RolloutEngine
from dagrpo.rewards.grading import Grader
from dagrpo.trainer.batches.rollouts import Rollouts, version_of
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.sampling.held_out import HeldOutEvaluations
from dagrpo.trainer.sampling.prefetch import PendingBatches, Prefetch
from dagrpo.trainer.sampling.prompt_sampler import PromptState
from dagrpo.trainer.sampling.step_sampler import StepSampler
from dagrpo.trainer.shutdown import Shutdown
from dagrpo.utils.distributed import World

Probe = Callable[
    [RolloutEngine | None, int], object
]  # checks, in every rank, the weights that sample a step (0-based); engine: rank 0's


@dataclass(frozen=True, kw_only=True)
class RolloutSource:
    """Source on the ranks that do not sample: they score the probe and follow rank 0."""

    probe: Probe
    shutdown: Shutdown
    training: Training
    world: World

    def next(self, step: int) -> Rollouts | None:
        """Return the rollouts of `step` (0-based) on rank 0; None elsewhere, after a signal to stop, and if the run has ended."""
        if not self.shutdown.was_requested:
            self.probe(None, step)
        return None

    def has_ended(self, finished: int) -> bool:
        """Return True, in every rank, if training.patience ends the run after `finished` steps. Every rank calls this."""
        return self.training.patience is not None and bool(self.world.broadcast())

    def wait(self) -> bool:
        """Wait until nothing is being sampled; return, in every rank, True if the run continues."""
        return not self.training.staleness or not self.shutdown.requested()

    def catch_up(self, finished: int) -> bool:
        """Sample the batches that weights older than those after `finished` steps owe to an interrupted run.

        Return, in every rank, True if the engine needs the weights after `finished` steps again.
        """
        if not self.training.staleness or not self.world.broadcast():
            return False
        return not self.shutdown.requested()

    def evaluate(self, finished: int) -> None:
        """Let the policy after `finished` steps, which the engine holds, answer held-out problems if that is due."""

    def end(self, finished: int) -> tuple[PromptState | None, PendingBatches]:
        """Stop sampling ahead. Return the prompt sampler's state and the batches to save with the state after `finished` steps."""
        return None, PendingBatches()


@dataclass(frozen=True, kw_only=True)
class SamplingSource(RolloutSource):
    """Source on rank 0. With training.staleness a thread samples the next batches beside the update (prefetch.py)."""

    engine: RolloutEngine
    sampler: StepSampler
    prefetch: Prefetch
    grader: Grader
    held_out: HeldOutEvaluations
    clock: Clock

    def next(self, step: int) -> Rollouts | None:
        """Return the rollouts of `step` (0-based), of weights that are `staleness` steps older; None after a signal to stop, and if
        the held-out answers of this policy end the run.

        The engine must hold the weights after `step` updates; it releases its GPU memory for the next one. Raises ServerError
        if the engine fails, and UserError if nothing can be learned.
        """
        if self.shutdown.was_requested:
            return None
        self.clock.restart()
        self.probe(self.engine, step)
        self.clock.lap("gates")
        rollouts = None
        with self.shutdown.interruptible() as is_allowed:
            if is_allowed:
                self._evaluate(step)
            if is_allowed and self.held_out.last_step > step:
                self.prefetch.start(step)
                rollouts = (
                    self.prefetch.take(step) if self.training.staleness else self.sampler.sample(step, self.clock)
                )
                if self.training.staleness:
                    self.clock.lap("rollout")
        if rollouts is not None:
            self.engine.release_memory()
            self.clock.lap("weight_sync")  # part of it, as is the engine's return to the GPU
        return rollouts

    def has_ended(self, finished: int) -> bool:
        return self.training.patience is not None and bool(self.world.broadcast(self.held_out.last_step <= finished))

    def wait(self) -> bool:
        """Wait until the thread has ended. Its error ends the run once the state is saved."""
        if self.training.staleness:
            with self.shutdown.interruptible() as is_allowed:
                if is_allowed:
                    self.shutdown.end_with(self.prefetch.finish())
            self.clock.lap("rollout")
        return super().wait()

    def catch_up(self, finished: int) -> bool:
        """Load the older weights one after the other, and let them sample the batches that they owe."""
        missing = self.prefetch.missing(finished)
        if not self.training.staleness or not self.world.broadcast(bool(missing)):
            return False
        with self.shutdown.interruptible() as is_allowed:
            if is_allowed:
                for step in missing:
                    steps, weights = self.prefetch.sampler(step)
                    self.engine.load(weights, version_of(steps))
                    self.prefetch.make_up(step)
        return not self.shutdown.requested()

    def evaluate(self, finished: int) -> None:
        """Let the policy answer held-out problems, unless a signal to stop comes."""
        with self.shutdown.interruptible() as is_allowed:
            if is_allowed:
                self._evaluate(finished)

    def end(self, finished: int) -> tuple[PromptState | None, PendingBatches]:
        """Interrupt the thread. Its unfinished batch is sampled again by a resumed run."""
        self.prefetch.end()
        pending = self.prefetch.pending(finished)
        prompts, parts = self.sampler.prompt_states[max(pending.batches, default=finished - 1) + 1]
        return prompts, replace(pending, parts=parts)

    def _evaluate(self, finished: int) -> None:
        self.held_out.evaluate(finished, self.engine, self.grader)
        if self.held_out.is_on:
            self.clock.lap("held_out")
