"""Saver of a run's resumable states."""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch

from dagrpo.trainer.checks.suite import CheckSuite
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.sampling import prefetch_state
from dagrpo.trainer.sampling.source import RolloutSource
from dagrpo.trainer.state import tensors
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.utils.distributed import World

# Among a state's notes:
AHEAD = "ahead"  # number of saved batches that wait for their update
PROMPTS = "drawn"  # state of the prompt sampler: position and retired prompts
GATES = "gates"  # counts of the checks over weight syncs
logger = logging.getLogger(__name__)


class Saver:
    """Saver of states at intervals, after the last step and on demand. Every rank has one and writes its part.

    A thread writes a state while the engine samples: nothing changes weights and optimizer until the next update, so that no copy
    of them is needed. With training.staleness, sampling takes place during the update, and the run waits for its states.
    As a context it finishes the last state, also after an error, but not after a signal to stop at once.
    """

    def __init__(
        self,
        run: TrainingRun,
        *,
        first: int,
        model: torch.nn.Module,
        optimizer: torch.optim.AdamW,
        base: str | None,
        update: PolicyUpdate,
        checks: CheckSuite,
        source: RolloutSource,
        clock: Clock,
        world: World,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start after `first` steps, whose state is saved. Every rank calls this.

        `base`: the tensor digest of the checkpoint that the run began with. `now`: the clock of save_every_minutes, in seconds.
        """
        self._run = run
        self._model = model
        self._optimizer = optimizer
        self._base = base
        self._checks = checks
        self._clock = clock
        self._world = world
        self._saved = first
        self._update = update
        self._source = source
        self._now = now
        self._began = now()
        self._writing_world = world.of_another_thread()
        self._writing: _Writing | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, Exception):
            try:
                self.finish()
            except Exception:  # the error of the block ends the run, and is what it reports
                logger.warning("the state that was being written is lost", exc_info=True)

    def save_if_due(self, finished: int) -> None:
        """Save the state after `finished` steps if section runtime.training asks for it, or the run is at its end."""
        if self._is_due(finished):
            self.save(finished)

    def save(self, finished: int) -> None:
        """Begin to write the state after `finished` steps, unless it is the last one that was saved."""
        if finished == self._saved:
            return
        self.finish()
        run = self._run
        prompts, pending = self._source.end(finished)
        notes: dict[str, Any] = {**self._update.saved, PROMPTS: prompts, GATES: self._checks.saved}
        if run.training.staleness:
            notes[AHEAD] = len(pending.batches)
        beside = partial(prefetch_state.write, pending=pending)
        keep = run.runtime.training.keep_states
        place = (run.state, finished, self._model, self._optimizer, self._writing_world)
        tensors.save(*place, notes, keep, self._base, beside, self._begin)
        self._saved, self._began = finished, self._now()
        if run.training.staleness:
            self.finish()

    def finish(self) -> None:
        """Wait until the last state is on the disk. The next update may not begin before. Re-raises the error that ended it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.finish()
        self._clock.lap("save")

    def _begin(self, write: Callable[[], None]) -> None:
        self._writing = _Writing(write)

    def _is_due(self, finished: int) -> bool:
        runtime = self._run.runtime.training
        if finished % runtime.save_every == 0 or finished == self._run.training.steps:
            return True
        minutes = runtime.save_every_minutes
        return minutes is not None and bool(self._world.broadcast(self._now() - self._began >= 60 * minutes))


class _Writing:
    """A state that a thread writes."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="state", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for the thread. Re-raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            self._write()
        except BaseException as error:  # noqa: BLE001  the trainer's thread raises it, whatever it is
            self._error = error
