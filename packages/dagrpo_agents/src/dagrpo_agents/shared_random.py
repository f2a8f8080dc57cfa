"""Warn about shared random numbers in user code.

All attempts of a process share the global generators, so that the order of their calls decides which attempt gets which number, and
two otherwise equal runs differ. The warning appears once. Other sources of chance, such as a clock or a generator that the code seeds
from the system, are not detected.
"""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from dagrpo.utils.console import say

logger = logging.getLogger(__name__)


class SharedRandom:
    """Watcher of the module functions of `random` and `numpy.random` while some code runs."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._has_warned = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Warn if the block, which runs user code, changes a shared generator. Other attempts may run the same code meanwhile."""
        if self._has_warned:
            yield
            return
        before = _state()
        try:
            yield
        finally:
            if _state() != before:
                self._warn()

    def _warn(self) -> None:
        if self._has_warned:  # by an attempt beside this one
            return
        self._has_warned = True
        sentence = (
            f"{self._owner} draws random numbers from the module random or numpy.random, which all attempts share: two runs will "
            "differ. Draw them from random.Random(index), with the index that reset is given."
        )
        logger.warning(sentence)
        say(sentence)


def _state() -> tuple[object, ...]:
    of_numpy = np.random.get_state(legacy=False)["state"].values()  # of whatever generator numpy was given
    return random.getstate(), *(part.tobytes() if isinstance(part, np.ndarray) else part for part in of_numpy)
