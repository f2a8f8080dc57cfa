"""Batches that are sampled ahead: rank 0 draws, samples and grades those of the next steps while the policy is updated.

The lag is fixed: the weights after max(0, t - S) steps sample the batch of step t (from 0), S being training.staleness. So a
run is a function of its seed, however long anything takes. Weights are handed over between two batches, never while one is
sampled: a step waits for the batches of its weights before the next ones are loaded. With S = 0 there is no thread, and each
batch is made when it is asked for.

Not here: partial rollouts, and how a batch is made (buffer.py) or kept (kept_batches.py).
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.trainer.record import Clock
from dagrpo.trainer.step_rollouts import StepRollouts

JOIN_SECONDS = 10.0  # for a thread that was told to end: what it waits for has been cancelled
Drawn = Mapping[str, Any]


def steps_in_sampler(step: int, staleness: int) -> int:
    """How many finished steps are in the weights that sample the batch of a step, from 0."""
    return max(0, step - staleness)


def version_of(finished: int) -> str:
    """What completions call the weights after so many steps: the same in a run that was interrupted."""
    return f"step_{finished}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Untrained:
    """What a state has beside its policy: batches that were sampled and not trained on yet, and weights that others wait for."""

    batches: Mapping[int, StepRollouts] = field(default_factory=dict)  # by step, from 0
    samplers: Mapping[int, Tensors] = field(default_factory=dict)  # by how many finished steps are in them


class Ahead:
    """The batches of a run in their order, on rank 0. At most one thread makes them."""

    def __init__(
        self,
        make: Callable[[int, Clock], StepRollouts],
        drawn: Callable[[], Drawn],
        *,
        staleness: int,
        steps: int,
        first: int,
        interrupt: Callable[[], None],
        untrained: Untrained,
    ) -> None:
        """`make` makes the batch of a step, `drawn` says which prompts were drawn so far. `interrupt`, called by another
        thread, ends a `make` that is at work. `first`: the step, from 0, that the run goes on with.
        """
        self._make = make
        self._drawn_by_now = drawn
        self._staleness = staleness
        self._steps = steps
        self._interrupt = interrupt
        self._made = {step: batch for step, batch in untrained.batches.items() if step >= first}
        self._samplers = dict(untrained.samplers)
        self._drawn = {max(self._made, default=first - 1) + 1: drawn()}  # before the step of that number
        self._failure: BaseException | None = None
        self._ended = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def remember(self, finished: int, weights: Tensors) -> None:
        """Keep the weights after so many steps, until they have sampled all that they are to sample."""
        if self._staleness:
            self._samplers[finished] = weights

    def missing(self, finished: int) -> list[int]:
        """The steps whose batches still have to be sampled, by weights older than those after `finished` steps."""
        behind = range(finished, min(finished + self._staleness, self._steps))
        left = [step for step in behind if step not in self._made]
        return [step for step in left if steps_in_sampler(step, self._staleness) < finished]

    def sampler(self, step: int) -> tuple[int, Tensors]:
        """The weights that are to sample the batch of a step, and how many finished steps are in them."""
        finished = steps_in_sampler(step, self._staleness)
        return finished, self._samplers[finished]

    def start(self, step: int) -> None:
        """Start the thread that samples what the weights after `step` steps are to sample. The engine holds them."""
        assert self._thread is None or not self._thread.is_alive(), "the weights changed under a batch"
        last = min(step + self._staleness, self._steps - 1)
        steps = [each for each in range(step, last + 1) if each not in self._made]
        if self._staleness and steps:
            self._thread = threading.Thread(target=self._work, args=(steps,), name="rollouts-ahead", daemon=True)
            self._thread.start()

    def take(self, step: int, clock: Clock) -> StepRollouts:
        """Wait for the batch of a step. States keep it until `trained` is called for the step.

        Raises whatever making it has raised.
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
        """Raise what has ended the thread, unless it was told to end."""
        if self._failure is not None and not self._ended:
            raise self._failure

    def finish(self) -> bool:
        """Wait for the thread; whether all went well. What went wrong is raised by `take` or `require_sound`."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None)
        return self._failure is None

    def trained(self, step: int) -> None:
        """The policy has learned from the batch of a step."""
        self._made.pop(step, None)
        self._drawn = {before: drawn for before, drawn in self._drawn.items() if before > step}

    def make_up(self, step: int) -> None:
        """Make a missing batch, without a thread. The engine holds the weights that are to sample it."""
        self._keep(step, *self._whole(step))

    def end(self) -> None:
        """Break off the batch that is being made, if one is: then none is made from now on."""
        with self._changed:
            thread = self._thread
            self._ended = self._ended or thread is not None
        if thread is not None:
            self._interrupt()
            thread.join(JOIN_SECONDS)

    def untrained(self, finished: int) -> Untrained:
        """What the state after so many steps has to keep beside its own weights. No thread is at work."""
        samplers = {steps: weights for steps, weights in self._samplers.items() if steps < finished}
        return Untrained(batches=dict(self._made), samplers=samplers)

    def drawn(self, finished: int) -> Drawn:
        """Which prompts were drawn for the finished steps, so many, and for the batches that are kept beside them."""
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

    def _whole(self, step: int) -> tuple[StepRollouts, Drawn]:
        """The batch of a step as the trainer gets it, and which prompts were drawn by then."""
        clock, finished = Clock(), steps_in_sampler(step, self._staleness)
        batch = self._make(step, clock)
        versions = {sample.weight_version for each in batch.graded for sample in each.trajectory.samples}
        assert versions <= {version_of(finished)}, f"step {step + 1} was sampled by {versions}"
        seconds = sum(clock.laps.values())
        ahead = replace(batch, staleness=step - finished, ahead_seconds=seconds, grading_seconds=0.0)
        return ahead, self._drawn_by_now()

    def _keep(self, step: int, batch: StepRollouts, drawn: Drawn) -> None:
        with self._changed:
            if self._ended:  # the state is being written without it
                return
            self._made[step] = batch
            self._drawn[step + 1] = drawn
            oldest = steps_in_sampler(step + 1, self._staleness)
            self._samplers = {finished: each for finished, each in self._samplers.items() if finished >= oldest}
            self._changed.notify_all()
