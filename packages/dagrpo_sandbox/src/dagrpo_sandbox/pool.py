"""Pool of started sandboxes, which save programs an interpreter's start."""

import asyncio
from collections import deque
from pathlib import Path
from types import TracebackType

from dagrpo_sandbox.bubblewrap import Installation, find_installation
from dagrpo_sandbox.records import MEBIBYTE, Limits, Result, SandboxClosed, SandboxUnavailable
from dagrpo_sandbox.sandbox import Sandbox, prove_limits, run_once

TRIES = 3  # whatever killed one sandbox may have killed those that wait, too


async def run_cold(program: str, limits: Limits | None = None, *, python: Path | None = None) -> Result:
    """Run a program in a separate, cold sandbox. Raises SandboxUnavailable if it cannot start, or does not limit programs."""
    installation = find_installation(python)
    await prove_limits(installation)
    return await run_once(installation, program, limits or Limits())


class SandboxPool:
    """Pool that runs `size` programs at a time, each in an interpreter that has just been forked; the others wait their turn.

    async with SandboxPool(Limits(seconds=5.0), size=4) as pool:
        result = await pool.run("print(6 * 7)")
    """

    def __init__(self, limits: Limits | None = None, *, size: int = 4, python: Path | None = None) -> None:
        self._limits = limits or Limits()
        self._size = size
        self._python = python
        self._installation: Installation | None = None
        self._turns = asyncio.Semaphore(size)
        self._waiting: deque[asyncio.Task[Sandbox]] = deque()  # for programs; some of them still start
        self._running: set[Sandbox] = set()
        self._sessions: set[Session] = set()
        self._open = True
        self._ending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "SandboxPool":
        """Start the sandboxes. Raises SandboxUnavailable if no program can be isolated here."""
        self._installation = find_installation(self._python)
        for _ in range(self._size):
            self._start()
        try:
            await asyncio.gather(*self._waiting)
            await prove_limits(self._installation)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def run(self, program: str, *, seconds: float | None = None) -> Result:
        """Run a program. Raises SandboxUnavailable if no sandbox starts any more, SandboxClosed if the pool is closed.

        It runs again if its sandbox broke, which is no program's fault: the one before left no trace. seconds: what it may take in
        place of the pool's own limit.
        """
        async with self._turns:
            for _ in range(TRIES):
                result, broken = await self._run(program, seconds)
                if not broken:
                    break
            return result

    async def _run(self, program: str, seconds: float | None) -> tuple[Result, bool]:
        """Return the result, and whether the sandbox broke."""
        sandbox = await self.take()
        self._running.add(sandbox)
        try:
            return await sandbox.run(program, seconds=seconds), sandbox.broken
        finally:
            self._running.discard(sandbox)
            if sandbox.usable and self._open:
                self._waiting.append(_finished(sandbox))
            else:
                self.end(sandbox)
                self._start()

    def session(self) -> "Session":
        """Return a session for programs that share their variables; to be closed."""
        session = Session(self, self._turns)
        self._sessions.add(session)
        return session

    async def take(self) -> Sandbox:
        """Take an exclusive sandbox in which no earlier program has left a trace. Raises SandboxUnavailable or SandboxClosed."""
        if not self._open:
            raise SandboxClosed("the pool is closed, and runs no more programs")
        while (sandbox := await self._next()).has_ended:  # killed while it waited
            self.end(sandbox)
            self._start()
        return sandbox

    async def _next(self) -> Sandbox:
        starting = self._waiting.popleft()
        try:
            return await asyncio.shield(starting)
        except BaseException:
            self._keep(starting)
            raise

    def _keep(self, starting: "asyncio.Task[Sandbox]") -> None:
        """Keep a sandbox that the caller did not wait for; start another one if it did not start."""
        if starting.done() and (starting.cancelled() or starting.exception()):
            self._start()
        else:
            self._waiting.append(starting)

    def replace(self) -> None:
        """Start another sandbox for programs, as a session keeps one for itself."""
        self._start()

    def end(self, sandbox: Sandbox) -> None:
        """Close a sandbox in the background."""
        ending = asyncio.create_task(sandbox.close())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def forget(self, session: "Session") -> None:
        """Forget a closed session."""
        self._sessions.discard(session)

    def limit_memory(self, caller: "Session") -> None:
        """Drop the largest of the waiting sessions, the caller among them, until all together hold no more than they may."""
        most = self._limits.sessions_mb * MEBIBYTE
        while sum(each.held_bytes for each in self._sessions) > most:
            waiting = [each for each in self._sessions if each.held_bytes and (each is caller or not each.is_running)]
            if not waiting:
                break
            max(waiting, key=lambda each: each.held_bytes).give_up()

    def _start(self) -> None:
        assert self._installation is not None, "the pool is not open"
        if self._open:
            start = Sandbox.start(self._installation, self._limits, warm=True)
            self._waiting.append(asyncio.create_task(start))

    async def _close(self) -> None:
        """Close all sandboxes, so that nothing is left of them."""
        for session in list(self._sessions):
            await session.close()
        self._open = False
        for started in await asyncio.gather(*self._waiting, return_exceptions=True):
            if isinstance(started, Sandbox):
                self.end(started)
        for sandbox in list(self._running):
            self.end(sandbox)
        self._waiting.clear()
        await asyncio.gather(*self._ending)


class Session:
    """Programs of one conversation, one after the other, in one interpreter: each knows the definitions of those before it.

    Files in /tmp are kept too. A program that ends with neither `ok` nor `error` takes all of that with it. If all sessions together
    hold more than `sessions_mb`, the pool ends the largest, whose next program is answered with `sessions_limit`.
    """

    def __init__(self, pool: SandboxPool, turns: asyncio.Semaphore) -> None:
        self._pool = pool
        self._turns = turns
        self._order = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._is_lost = False
        self._is_given_up = False
        self._open = True

    @property
    def held_bytes(self) -> int:
        """Return the bytes that its processes held after its last program."""
        return self._sandbox.held_bytes if self._sandbox else 0

    @property
    def is_running(self) -> bool:
        """Return True while it runs a program, or waits to run one."""
        return self._order.locked()

    async def run(self, program: str) -> Result:
        """Run the next program. Raises SandboxUnavailable if no sandbox starts any more, SandboxClosed after `close`.

        It runs again if the sandbox broke with nothing in it. One that broke with variables in it took them away through no
        fault of a program: every later call then raises SandboxUnavailable.
        """
        async with self._order, self._turns:
            if self._is_given_up:
                self._is_given_up = False
                return Result(stdout="", status="sessions_limit", seconds=0.0)
            for _ in range(TRIES):
                if not self._open:
                    raise SandboxClosed("the session is closed, and runs no more programs")
                if self._is_lost:
                    raise SandboxUnavailable("a sandbox was ended from outside, and its variables are lost")
                held_variables = self._sandbox is not None
                result, broken = await self._run(program)
                if not broken:
                    break
                self._is_lost = held_variables
            self._pool.limit_memory(self)
            return result

    def give_up(self) -> None:
        """Lose its variables and processes, and answer its next program with `sessions_limit`."""
        self._is_given_up = True
        self._drop()

    async def _run(self, program: str) -> tuple[Result, bool]:
        """Return the result, and whether the sandbox broke."""
        if self._sandbox is None:
            self._sandbox = await self._pool.take()
            self._pool.replace()
        sandbox = self._sandbox
        try:
            return await sandbox.run(program, keep=True), sandbox.broken
        finally:
            if not sandbox.usable:
                self._drop()

    async def close(self) -> None:
        """Close it, with its variables and processes."""
        self._open = False
        self._pool.forget(self)
        self._drop()

    def _drop(self) -> None:
        if self._sandbox is not None:
            self._pool.end(self._sandbox)
        self._sandbox = None


def _finished(sandbox: Sandbox) -> "asyncio.Task[Sandbox]":
    async def itself() -> Sandbox:
        return sandbox

    return asyncio.create_task(itself())
