"""Pause a deadline while the policy is asked.

An attempt then waits for others, and the engine has a separate limit.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused(deadline: asyncio.Timeout) -> Iterator[None]:
    """Move the deadline by the duration of the block."""
    when, loop = deadline.when(), asyncio.get_running_loop()
    assert when is not None, "it is set whenever the policy is not asked"
    left = when - loop.time()
    deadline.reschedule(None)
    yield
    deadline.reschedule(loop.time() + left)
