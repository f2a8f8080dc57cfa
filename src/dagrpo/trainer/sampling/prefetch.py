"""Sampling ahead: rank 0 samples the next steps' batches during the update.

The lag is fixed: the weights after max(0, t - S) steps sample the batch of step t (0-based), S being training.staleness. So a
run is a function of its seed, however long anything takes. Weights are synced between two batches, never while one is
sampled: a step waits for the batches of its weights before the next ones are loaded. With S = 0 there is no thread, and each
batch is sampled on request.

step_sampler.py samples a batch, prefetch_state.py saves it.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.rollout.early_stop import Parts
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.clock import Clock

JOIN_SECONDS = 10.0  # for a thread that was asked to end: the requests it waits for have been cancelled


def steps_in_sampler(step: int, staleness: int) -> int:
    """Return the number of finished steps in the weights that sample the batch of `step` (0-based)."""
    return max(0, step - staleness)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBatches:
    """Part of a state beside its policy: batches that wait for their update, weights that have yet to sample, and parts of attempts."""

    batches: Mapping[int, Rollouts] = field(default_factory=dict)  # by step, from 0
    samplers: Mapping[int, Tensors] = field(default_factory=dict)  # by the number of finished steps in them
    # Of groups that were cut off, by their places among those in the prompt sampler's state.
    parts: Mapping[int, Parts] = field(default_factory=dict)


class Prefetch:
    """Queue of a run's batches in order, on rank 0, which one thread fills. Without staleness it stays empty."""

    def __init__(
        self,
        sample: Callable[[int, Clock], Rollouts],
        *,
        staleness: int,
        steps: int,
        first: int,
        interrupt: Callable[[], None],
        pending: PendingBatches,
    ) -> None:
        """Start with the step `first` (0-based). `sample` samples a step's batch; `interrupt`, called by another thread, ends it."""
        self._sample = sample
        self._staleness = staleness
        self._steps = steps
        self._interrupt = interrupt
        self._batches = {step: batch for step, batch in pending.batches.items() if step >= first}
        self._samplers = dict(pending.samplers)
        self._error: BaseException | None = None
        self._ended = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def remember(self, finished: int, weights: Tensors) -> None:
        """Keep the weights after `finished` steps until they have sampled all of their batches."""
        if self._staleness:
            self._samplers[finished] = weights

    def missing(self, finished: int) -> list[int]:
        """Return the steps whose batches are still to be sampled, by weights older than those after `finished` steps."""
        behind = range(finished, min(finished + self._staleness, self._steps))
        unsampled = [step for step in behind if step not in self._batches]
        return [step for step in unsampled if steps_in_sampler(step, self._staleness) < finished]

    def sampler(self, step: int) -> tuple[int, Tensors]:
        """Return the number of finished steps in the weights that sample the batch of `step`, and these weights."""
        finished = steps_in_sampler(step, self._staleness)
        return finished, self._samplers[finished]

    def start(self, step: int) -> None:
        """Start the thread that samples the batches of the weights after `step` steps, which the engine holds."""
        assert self._thread is None or not self._thread.is_alive(), "the weights changed under a batch"
        last = min(step + self._staleness, self._steps - 1)
        steps = [each for each in range(step, last + 1) if each not in self._batches]
        if self._staleness and steps:
            self._thread = threading.Thread(target=self._work, args=(steps,), name="prefetch", daemon=True)
            self._thread.start()

    def take(self, step: int) -> Rollouts:
        """Wait for the batch of a step and return it; earlier ones are dropped. Re-raises any exception of the thread."""
        with self._changed:
            self._changed.wait_for(lambda: step in self._batches or self._error is not None)
            self._batches = {each: batch for each, batch in self._batches.items() if each >= step}
        if step not in self._batches:
            assert self._error is not None
            raise self._error
        return self._batches[step]

    def finish(self) -> BaseException | None:
        """Wait for the thread; return the exception that ended it, unless `end` interrupted it."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None)
        return None if self._ended else self._error

    def make_up(self, step: int) -> None:
        """Sample a missing batch without a thread. The engine must hold the weights that are to sample it."""
        self._put(step, self._stale_batch(step))

    def end(self) -> None:
        """Interrupt the batch in progress, if any, and start no more."""
        with self._changed:
            thread = self._thread
            self._ended = self._ended or thread is not None
        if thread is not None:
            self._interrupt()
            thread.join(JOIN_SECONDS)

    def pending(self, finished: int) -> PendingBatches:
        """Return the part of the state after `finished` steps that is kept beside its weights. No thread may be running."""
        batches = {step: batch for step, batch in self._batches.items() if step >= finished}
        samplers = {steps: weights for steps, weights in self._samplers.items() if steps < finished}
        return PendingBatches(batches=batches, samplers=samplers)

    def _work(self, steps: Iterable[int]) -> None:
        try:
            for step in steps:
                self._put(step, self._stale_batch(step))
        except BaseException as error:  # noqa: BLE001  the trainer's thread raises it, whatever it is
            with self._changed:
                self._error = error
        with self._changed:
            self._thread = None
            self._changed.notify_all()

    def _stale_batch(self, step: int) -> Rollouts:
        """Sample the batch of a step; return it as the trainer gets it."""
        clock, finished = Clock(), steps_in_sampler(step, self._staleness)
        batch = self._sample(step, clock)
        seconds = sum(clock.laps.values())
        return replace(batch, staleness=step - finished, ahead_seconds=seconds, grading_seconds=0.0)

    def _put(self, step: int, batch: Rollouts) -> None:
        with self._changed:
            if self._ended:  # the state is being written without this batch
                return
            self._batches[step] = batch
            oldest = steps_in_sampler(step + 1, self._staleness)
            self._samplers = {finished: each for finished, each in self._samplers.items() if finished >= oldest}
            self._changed.notify_all()
