"""A deadline that stands still while the policy is asked: an attempt then waits for others, and the engine has its own limit."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused(deadline: asyncio.Timeout) -> Iterator[None]:
    """Moves the deadline by as long as the block takes."""
    when, loop = deadline.when(), asyncio.get_running_loop()
    assert when is not None, "it is set whenever the policy is not asked"
    left = when - loop.time()
    deadline.reschedule(None)
    yield
    deadline.reschedule(loop.time() + left)
