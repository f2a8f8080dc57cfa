"""Event loop in a separate thread.

Callers with and without a loop share one set of connections.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

Result = TypeVar("Result")


class BackgroundLoop:
    """Runner of coroutines, as a context manager. It cancels those that are unfinished at its end."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="rollout-engine", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` and wait for its result."""
        submitted = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return submitted.result()
        finally:
            submitted.cancel()  # the caller was interrupted; no effect on finished work

    def cancel(self) -> None:
        """Cancel unfinished coroutines, from any thread: their callers get a CancelledError."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop) - {self._waiting}:
            task.cancel()

    async def join(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of `work`, for a coroutine of another loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels what is unfinished
            runner.run(self._until_the_end())

    async def _until_the_end(self) -> None:
        self._waiting = asyncio.current_task()
        await self._ended.wait()


async def all_of(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Return all results in order. The first failure cancels the others, and is raised unchanged once all have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        unfinished = [task for task in tasks if not task.done()]
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
