"""Saver of a run's resumable states and kept policies."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch

from dagrpo.trainer.checks.suite import CheckSuite
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.keeper import Keeper
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


@dataclass(kw_only=True)
class Saver:
    """Saver of states at intervals, after the last step and on demand, and of policies to keep. Every rank has one and writes its part.

    Threads write them while the engine samples: nothing changes weights and optimizer until the next update, so that no copy
    of them is needed. With training.staleness, sampling takes place during the update, and the run waits for its states.
    As a context it finishes the last state, also after an error, but not after a signal to stop at once.
    """

    run: TrainingRun
    saved: int  # steps of the last state; of the one that the run begins with, whose state is there
    model: torch.nn.Module
    optimizer: torch.optim.AdamW
    base: str | None  # the tensor digest of the checkpoint that the run began with
    update: PolicyUpdate
    checks: CheckSuite
    source: RolloutSource
    keeper: Keeper
    clock: Clock
    world: World
    now: Callable[[], float] = time.monotonic  # the clock of save_every_minutes, in seconds

    def __post_init__(self) -> None:
        """Start. Every rank calls this."""
        self._began = self.now()
        self._writing_world = self.world.of_another_thread()
        self._writings: list[_Writing] = []
        self._encoding: _Writing | None = None  # of a kept policy, which reads files and not the weights

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._finish_all()
        elif isinstance(error, Exception):
            try:
                self._finish_all()
            except Exception:  # the error of the block ends the run, and is what it reports
                logger.warning("the state that was being written is lost", exc_info=True)

    def gather_if_due(self, finished: int) -> None:
        """Gather the policy to keep after `finished` steps, if that has to precede the weight sync."""
        if self.keeper.precedes_sync and self.keeper.is_due(finished):
            self._finish_encoding()
            self.keeper.gather(finished)
            self.clock.lap("save")

    def save_if_due(self, finished: int) -> None:
        """Save the state after `finished` steps if section runtime.training asks for it, or the run is at its end, and keep the policy
        if training.keep_policies asks for it."""
        if self._is_due(finished):
            self.save(finished)
        if self.keeper.is_due(finished):
            self._keep(finished)

    def save(self, finished: int) -> None:
        """Begin to write the state after `finished` steps, unless it is the last one that was saved.

        Waits for the policy that is being kept: a run without it resumes from one of the states that are removed now.
        """
        if finished == self.saved:
            return
        self._finish_all()
        run = self.run
        prompts, pending = self.source.end(finished)
        notes: dict[str, Any] = {**self.update.saved, PROMPTS: prompts, GATES: self.checks.saved}
        if run.training.staleness:
            notes[AHEAD] = len(pending.batches)
        beside = partial(prefetch_state.write, pending=pending)
        keep = run.runtime.training.keep_states
        place = (run.state, finished, self.model, self.optimizer, self._writing_world)
        tensors.save(*place, notes, keep, self.base, beside, self._begin)
        self.saved, self._began = finished, self.now()
        if run.training.staleness:
            self.finish()

    def finish(self) -> None:
        """Wait until weights and optimizer have been read to save them. The next update may not begin before. Re-raises errors."""
        writings, self._writings = self._writings, []
        errors = [writing.error_at_end() for writing in writings]
        for error in filter(None, errors):
            raise error
        self.clock.lap("save")

    def _finish_all(self) -> None:
        self.finish()
        self._finish_encoding()
        self.clock.lap("save")

    def _finish_encoding(self) -> None:
        encoding, self._encoding = self._encoding, None
        if encoding is not None and (error := encoding.error_at_end()):
            raise error

    def _keep(self, finished: int) -> None:
        """Begin to keep the policy after `finished` steps, whose state is saved if that is due, too."""
        self._finish_encoding()

        def write() -> None:
            if not self.keeper.precedes_sync:
                self.keeper.gather(finished)
            self._encoding = _Writing(partial(self.keeper.encode, finished))

        self._begin(write)
        if self.run.training.staleness:
            self.finish()

    def _begin(self, write: Callable[[], None]) -> None:
        self._writings.append(_Writing(write))

    def _is_due(self, finished: int) -> bool:
        runtime = self.run.runtime.training
        if finished % runtime.save_every == 0 or finished == self.run.training.steps:
            return True
        minutes = runtime.save_every_minutes
        return minutes is not None and bool(self.world.broadcast(self.now() - self._began >= 60 * minutes))


class _Writing:
    """Writing in a thread."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="state", daemon=True)
        self._thread.start()

    def error_at_end(self) -> BaseException | None:
        """Wait for the thread, and return its error."""
        self._thread.join()
        return self._error

    def _work(self) -> None:
        try:
            self._write()
        except BaseException as error:  # noqa: BLE001  the trainer's thread raises it, whatever it is
            self._error = error
