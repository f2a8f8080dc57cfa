"""Waiting for what comes soon, but on a busy machine late."""

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool], seconds: float = 120.0) -> None:
    """Return as soon as something is so; AssertionError after some seconds."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)
