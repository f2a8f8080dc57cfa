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
from typing import Any

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.history import Clock

JOIN_SECONDS = 10.0  # for a thread that was asked to end: the requests it waits for have been cancelled
Drawn = Mapping[str, Any]


def steps_in_sampler(step: int, staleness: int) -> int:
    """Return the number of finished steps in the weights that sample the batch of `step` (0-based)."""
    return max(0, step - staleness)


def version_of(finished: int) -> str:
    """Return the name that completions give to the weights after `finished` steps: the same in a resumed run."""
    return f"step_{finished}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Untrained:
    """Part of a state beside its policy: sampled batches that are not trained on yet, and older weights that have yet to sample."""

    batches: Mapping[int, Rollouts] = field(default_factory=dict)  # by step, from 0
    samplers: Mapping[int, Tensors] = field(default_factory=dict)  # by the number of finished steps in them


class Ahead:
    """Queue of a run's batches in order, on rank 0. At most one thread samples them."""

    def __init__(
        self,
        make: Callable[[int, Clock], Rollouts],
        drawn: Callable[[], Drawn],
        *,
        staleness: int,
        steps: int,
        first: int,
        interrupt: Callable[[], None],
        untrained: Untrained,
    ) -> None:
        """Start with the step `first` (0-based). `make` samples a step's batch, `drawn` returns the prompt sampler's state.

        `interrupt`, called by another thread, ends a running `make`.
        """
        self._make = make
        self._drawn_by_now = drawn
        self._staleness = staleness
        self._steps = steps
        self._interrupt = interrupt
        self._made = {step: batch for step, batch in untrained.batches.items() if step >= first}
        self._samplers = dict(untrained.samplers)
        self._drawn = {max(self._made, default=first - 1) + 1: drawn()}  # sampler state before each step
        self._failure: BaseException | None = None
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
        left = [step for step in behind if step not in self._made]
        return [step for step in left if steps_in_sampler(step, self._staleness) < finished]

    def sampler(self, step: int) -> tuple[int, Tensors]:
        """Return the number of finished steps in the weights that sample the batch of `step`, and these weights."""
        finished = steps_in_sampler(step, self._staleness)
        return finished, self._samplers[finished]

    def start(self, step: int) -> None:
        """Start the thread that samples the batches of the weights after `step` steps, which the engine holds."""
        assert self._thread is None or not self._thread.is_alive(), "the weights changed under a batch"
        last = min(step + self._staleness, self._steps - 1)
        steps = [each for each in range(step, last + 1) if each not in self._made]
        if self._staleness and steps:
            self._thread = threading.Thread(target=self._work, args=(steps,), name="rollouts-ahead", daemon=True)
            self._thread.start()

    def take(self, step: int, clock: Clock) -> Rollouts:
        """Wait for the batch of a step and return it. States keep it until `trained` is called for the step.

        Re-raises any exception of `make`.
        """
        if not self._staleness:
            batch = self._make(step, clock)
            self._drawn[step + 1] = self._drawn_by_now()
            return batch
        with self._changed:
            self._changed.wait_for(lambda: step in self._made or self._failure is not None)
        if step not in self._made:
            self.require_sound()
        return self._made[step]

    def require_sound(self) -> None:
        """Re-raise the exception that ended the thread, unless `end` stopped it."""
        if self._failure is not None and not self._ended:
            raise self._failure

    def finish(self) -> bool:
        """Wait for the thread; return True if it succeeded. `take` and `require_sound` raise its exception."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None)
        return self._failure is None

    def trained(self, step: int) -> None:
        """Drop the batch of a step, which the policy was trained on."""
        self._made.pop(step, None)
        self._drawn = {before: drawn for before, drawn in self._drawn.items() if before > step}

    def make_up(self, step: int) -> None:
        """Sample a missing batch without a thread. The engine must hold the weights that are to sample it."""
        self._keep(step, *self._whole(step))

    def end(self) -> None:
        """Interrupt the batch in progress, if any, and start no more."""
        with self._changed:
            thread = self._thread
            self._ended = self._ended or thread is not None
        if thread is not None:
            self._interrupt()
            thread.join(JOIN_SECONDS)

    def untrained(self, finished: int) -> Untrained:
        """Return the part of the state after `finished` steps that is kept beside its weights. No thread may be running."""
        samplers = {steps: weights for steps, weights in self._samplers.items() if steps < finished}
        return Untrained(batches=dict(self._made), samplers=samplers)

    def drawn(self, finished: int) -> Drawn:
        """Return the prompt sampler's state after the first `finished` steps and the batches that are kept beside them."""
        return self._drawn[max(self._made, default=finished - 1) + 1]

    def _work(self, steps: Iterable[int]) -> None:
        try:
            for step in steps:
                self._keep(step, *self._whole(step))
        except BaseException as failure:  # noqa: BLE001  the trainer's thread raises it, whatever it is
            with self._changed:
                self._failure = failure
        with self._changed:
            self._thread = None
            self._changed.notify_all()

    def _whole(self, step: int) -> tuple[Rollouts, Drawn]:
        """Sample the batch of a step; return it as the trainer gets it, and the prompt sampler's state by then."""
        clock, finished = Clock(), steps_in_sampler(step, self._staleness)
        batch = self._make(step, clock)
        versions = {sample.weight_version for each in batch.graded for sample in each.trajectory.samples}
        assert versions <= {version_of(finished)}, f"step {step + 1} was sampled by {versions}"
        seconds = sum(clock.laps.values())
        ahead = replace(batch, staleness=step - finished, ahead_seconds=seconds, grading_seconds=0.0)
        return ahead, self._drawn_by_now()

    def _keep(self, step: int, batch: Rollouts, drawn: Drawn) -> None:
        with self._changed:
            if self._ended:  # the state is being written without this batch
                return
            self._made[step] = batch
            self._drawn[step + 1] = drawn
            oldest = steps_in_sampler(step + 1, self._staleness)
            self._samplers = {finished: each for finished, each in self._samplers.items() if finished >= oldest}
            self._changed.notify_all()
