"""Graceful shutdown on SIGTERM and Ctrl-C.

The run ends with a state of every step that it has finished. Sampling is interrupted at once; the policy is then that of the last
finished step. An update is finished first, since half of one has no state. Anything that takes longer than the grace time is
abandoned: the run then resumes from the state before.

Rank 0 decides; the other ranks learn of it where they wait for the next step. Steps that a crash ends are not covered.
"""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from dagrpo.core.errors import Terminated
from dagrpo.utils.distributed import World

Result = TypeVar("Result")
SIGNALS = (signal.SIGTERM, signal.SIGINT)
logger = logging.getLogger(__name__)


class Shutdown:
    """Signal to stop, if one has come, and the reaction to the next one."""

    def __init__(self, grace_seconds: float, world: World) -> None:
        self._grace_seconds = grace_seconds
        self._world = world
        self._signal = 0
        self._interrupts = False

    def interruptible(self, work: Callable[[], Result]) -> Result | None:
        """Run the work of rank 0 and return its result; None if a signal interrupts it, or came before and prevented it."""
        try:
            self._interrupts = True
            return None if self._signal else work()
        except BaseException:  # after a signal to stop, whatever error ended the work: Ctrl-C reaches the engine, too
            if not self._signal:
                raise
            return None
        finally:
            self._interrupts = False

    def requested(self) -> bool:
        """Return True if rank 0 has received a signal to stop, in every rank. Every rank calls this.

        A signal that reached another rank alone is ignored: its timer is cancelled.
        """
        self._signal = self._world.broadcast(self._signal)
        if not self._signal:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return self._signal != 0

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
