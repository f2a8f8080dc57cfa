"""Graceful shutdown on SIGTERM and Ctrl-C.

The run ends with a state of every step that it has finished. Sampling is interrupted at once; the policy is then that of the last
finished step. An update is finished first, since half of one has no state. Anything that takes longer than the grace time is
abandoned: the run then resumes from the state before.

Rank 0 decides; the other ranks learn of it where they wait for the next step. Steps that a crash ends are not covered.
"""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from dagrpo.core.errors import Terminated
from dagrpo.utils.distributed import World

SIGNALS = (signal.SIGTERM, signal.SIGINT)
logger = logging.getLogger(__name__)


class Shutdown:
    """Requests to end a run: a signal to stop, or an error that may end it only after a state is saved."""

    def __init__(self, grace_seconds: float, world: World) -> None:
        self._grace_seconds = grace_seconds
        self._world = world
        self._signal = 0
        self._error: BaseException | None = None
        self._interrupts = False
        self.was_requested = False  # the last result of `requested`

    @contextmanager
    def interruptible(self) -> Iterator[bool]:
        """Let a signal to stop interrupt the block, which is left in silence then.

        Yields True if no signal has come before: else the block has to do nothing.
        """
        try:
            self._interrupts = True
            yield not self._signal
        except BaseException:  # after a signal to stop, any error in the block: Ctrl-C reaches the engine as well
            if not self._signal:
                raise
        finally:
            self._interrupts = False

    def end_with(self, error: BaseException | None) -> None:
        """End the run with an error of rank 0, if there is one, after the steps that are finished have been saved."""
        self._error = error

    def requested(self) -> bool:
        """Return True, in every rank, if rank 0 has received a signal to stop, or an error is to end it. Every rank calls this.

        A signal that reached another rank alone is ignored: its timer is cancelled.
        """
        self._signal, has_failed = self._world.broadcast((self._signal, self._error is not None))
        if not self._signal:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.was_requested = self._signal != 0 or has_failed
        return self.was_requested

    @contextmanager
    def listening(self) -> Iterator["Shutdown"]:
        """Catch signals to stop inside the block. After it, a caught signal is raised again with its former handler."""
        former: dict[int, Any] = {number: signal.signal(number, self._note) for number in SIGNALS}
        former[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._abandon)
        try:
            yield self
        except Exception:  # after a signal to stop, that is the reason for any error: Ctrl-C reaches the engine, too
            if not self._signal:
                raise
            logger.warning("an error after the signal to stop", exc_info=True)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in former.items():
                signal.signal(number, handler)
        if self._signal:
            signal.raise_signal(self._signal)
        if self._error is not None:
            raise self._error

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_impatient = self._signal == number == signal.SIGINT
        if not self._signal:
            self._signal = number
            signal.setitimer(signal.ITIMER_REAL, self._grace_seconds)
        if self._interrupts or is_impatient:
            self._raise()

    def _abandon(self, number: int, frame: FrameType | None) -> None:
        self._raise()

    def _raise(self) -> None:
        self._interrupts = False  # only once: the next interrupt would hit the cleanup
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated(128 + self._signal)
