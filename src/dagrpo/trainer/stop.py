"""How a run ends that is told to stop (SIGTERM, Ctrl-C): with a state of every step that it has finished.

Sampling is broken off at once; the policy is then that of the last finished step. An update is finished first, since half of
one is no state. Whatever takes longer than the grace time is abandoned: the run then goes on from the state before.

Rank 0 decides; the other ranks learn of it where they wait for the next step. Not for steps that a crash ends.
"""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from dagrpo.distributed import World
from dagrpo.errors import Terminated

Result = TypeVar("Result")
SIGNALS = (signal.SIGTERM, signal.SIGINT)
logger = logging.getLogger(__name__)


class Stop:
    """Whether the run was told to stop, and what a signal does at the moment."""

    def __init__(self, grace_seconds: float, world: World) -> None:
        self._grace_seconds = grace_seconds
        self._world = world
        self._signal = 0
        self._interrupts = False

    def interrupts(self, work: Callable[[], Result]) -> Result | None:
        """What the work of rank 0 returns, or None: a signal ends it, and one that came before leaves it undone."""
        try:
            self._interrupts = True
            return None if self._signal else work()
        except BaseException:  # once told to stop, whatever the work broke with: Ctrl-C reaches the engine, too
            if not self._signal:
                raise
            return None
        finally:
            self._interrupts = False

    def told(self) -> bool:
        """Whether rank 0 was told to stop, in every rank. Every rank calls this.

        A signal that reached another rank alone is none: what follows it is called off.
        """
        self._signal = self._world.broadcast(self._signal)
        if not self._signal:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return self._signal != 0

    @contextmanager
    def listening(self) -> Iterator["Stop"]:
        """Take signals to stop. Behind the block, one that has come does what it did before."""
        former: dict[int, Any] = {number: signal.signal(number, self._note) for number in SIGNALS}
        former[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._abandon)
        try:
            yield self
        except Exception:  # once told to stop, that is the reason, whatever broke by it: Ctrl-C reaches the engine, too
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
        self._interrupts = False  # once: the next one would interrupt what is left to close
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated(128 + self._signal)
