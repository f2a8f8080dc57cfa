"""The open tool code_interpreter: runs programs, and reports to the policy.

If a program fails, the policy reads its output, the traceback included, and the reason if it was stopped. A failure to run any
program is an infrastructure failure.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.tools import CallContext, InfrastructureFailure, OpenTool, StatelessTool, ToolFailure
from dagrpo_sandbox import Limits, Result, SandboxPool, SandboxUnavailable, Session

Run = Callable[[str], Awaitable[Result]]


class Interpreter(StatelessTool):
    """Interpreter that starts each program afresh. `run` raises InfrastructureFailure."""

    def __init__(self, run: Run, limits: Limits, most_characters: int) -> None:
        self._run = run
        self._limits = limits
        self._most_characters = most_characters

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the program's output. Raises ToolFailure if it failed, InfrastructureFailure if none could run."""
        return result_text(await self._run(arguments["code"]), self._limits, self._most_characters)


class SessionInterpreter:
    """Interpreter in which the programs of one attempt share their variables."""

    def __init__(self, pool: SandboxPool, limits: Limits, most_characters: int) -> None:
        self._pool = pool
        self._limits = limits
        self._most_characters = most_characters
        self._sessions: dict[str, Session] = {}

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Run the program like Interpreter.call. A program that is stopped loses its variables, which the policy reads."""
        if context.trajectory not in self._sessions:
            self._sessions[context.trajectory] = self._pool.session()
        result = await available(self._sessions[context.trajectory].run(arguments["code"]))
        lost = "" if result.status in ("ok", "error") else " Variables of earlier calls are lost."
        return result_text(result, self._limits, self._most_characters, lost)

    async def forget(self, trajectory: str) -> None:
        """Forget the trajectory's variables and processes, which have ended."""
        session = self._sessions.pop(trajectory, None)
        if session is not None:
            await session.close()


@asynccontextmanager
async def local_interpreter(
    limits: Limits, most_characters: int, parallel: int | None, *, keep: bool
) -> AsyncIterator[OpenTool]:
    """Open an interpreter in our own sandboxes. Raises UserError if the machine cannot isolate programs."""
    pool = SandboxPool(limits, size=parallel or os.cpu_count() or 1)
    try:
        await pool.__aenter__()
    except SandboxUnavailable as error:
        raise UserError(f"The tool code_interpreter cannot run here: {error}.") from error
    async with AsyncExitStack() as stack:
        stack.push_async_exit(pool)
        if keep:
            yield SessionInterpreter(pool, limits, most_characters)
        else:
            yield Interpreter(lambda program: available(pool.run(program)), limits, most_characters)


@asynccontextmanager
async def fusion_interpreter(url: str, limits: Limits, most_characters: int) -> AsyncIterator[OpenTool]:
    """Open an interpreter that a Sandbox Fusion server runs."""
    from aiohttp import ClientSession

    from dagrpo_sandbox.fusion import FusionClient

    async with ClientSession() as session:
        client = FusionClient(url, session, limits)
        yield Interpreter(lambda program: available(client.run(program)), limits, most_characters)


async def available(result: Awaitable[Result]) -> Result:
    """Return a sandbox's result. Raises InfrastructureFailure if no sandbox is available."""
    try:
        return await result
    except SandboxUnavailable as error:
        raise InfrastructureFailure(str(error)) from error


def result_text(result: Result, limits: Limits, most_characters: int, lost: str = "") -> str:
    """Return a result as text for the policy. Raises ToolFailure if the program did not end well."""
    output = result.stdout[:most_characters]
    if result.status == "ok" and len(output) == len(result.stdout):
        return output or "[The program printed nothing.]"
    why = {
        "ok": f"[Only the first {most_characters} characters are shown.]",
        "error": "" if output else "[The program ended with an error and printed nothing.]",
        "timed_out": f"[The program was stopped: it ran for more than {limits.seconds:g} seconds.{lost}]",
        "output_limit": f"[The program was stopped: it printed more than {most_characters} characters.{lost}]",
        "memory_limit": f"[The program was stopped: it used more than {limits.memory_mb} MiB of memory.{lost}]",
        "sessions_limit": f"[The program was not run: all sessions together held too much memory, and this one most.{lost}]",
        "killed": f"[The program was ended by a signal.{lost}]",
    }[result.status]
    text = output if not why else f"{output}\n{why}" if output else why
    if result.status == "ok":
        return text
    raise ToolFailure(text)
