"""Sandboxes for the tests of a batch of answers."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from dagrpo_answers.errors import UserError
from dagrpo_answers.unit_tests.running import TestRunner
from dagrpo_answers.unit_tests.tests_of_row import read_tests
from dagrpo_answers.verifier import ProgramLimits
from dagrpo_sandbox import Limits, SandboxPool, SandboxUnavailable

OUTPUT_BYTES = 8 << 20  # of one test
MOST_REMEMBERED = 1 << 15  # answers with their shares
T = TypeVar("T")


class SandboxedTests:
    """Sandboxes in a separate thread, started when first needed, and the latest shares; callers may be any threads."""

    def __init__(self, limits: ProgramLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = AsyncExitStack()
        self._known: dict[tuple[str, str, bool], float] = {}
        self._runner: asyncio.Task[TestRunner] | None = None

    def shares(self, answers: Sequence[tuple[str, str]], *, fractions: bool) -> list[float | None]:
        """Return the share of tests that each answer passes, of pairs of an answer and a ground truth, in order.

        None: the tests call it with what is no data. Without `fractions` a share is 0 or 1. Raises UserError if the ground truth states
        no tests, or if no sandbox can be used.
        """
        asked = [(answer, truth, fractions) for answer, truth in answers]
        with self._lock:
            known = {key: self._known[key] for key in asked if key in self._known}
        new = [key for key in dict.fromkeys(asked) if key not in known]
        found = dict(zip(new, self._wait(self._all(new)), strict=True)) if new else {}
        with self._lock:
            self._known |= {key: share for key, share in found.items() if share is not None}
            for oldest in list(self._known)[: max(0, len(self._known) - MOST_REMEMBERED)]:
                del self._known[oldest]
        return [found[key] if key in found else known[key] for key in asked]

    def close(self) -> None:
        """End all sandboxes."""
        if self._loop is not None:
            self._wait(self._stack.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="unit_tests", daemon=True).start()
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except SandboxUnavailable as error:
            raise UserError(f"The verifier unit_tests cannot run programs: {error}.".replace("..", ".")) from error

    async def _all(self, keys: Sequence[tuple[str, str, bool]]) -> list[float | None]:
        self._runner = self._runner or asyncio.create_task(self._open())
        runner = await self._runner
        work = [runner.share(answer, read_tests(truth), fraction=fraction) for answer, truth, fraction in keys]
        return await asyncio.gather(*work)

    async def _open(self) -> TestRunner:
        limits = self._limits
        each = Limits(
            seconds=limits.seconds, memory_mb=limits.memory_mb, processes=limits.processes, output_bytes=OUTPUT_BYTES
        )
        pool = await self._stack.enter_async_context(SandboxPool(each, size=limits.parallel))
        return TestRunner(pool.run, limits.seconds, limits.memory_mb)
