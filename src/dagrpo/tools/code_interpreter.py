"""code_interpreter: runs Python in a sandbox, optionally in a session with variables."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import MOST_CHARACTERS, MOST_PROCESSES, Seconds
from dagrpo.tools import (
    CallContext,
    InfrastructureFailure,
    OpenTool,
    StatelessTool,
    Tool,
    ToolFailure,
    ToolPlace,
    ToolSection,
    function_of_text,
)

if TYPE_CHECKING:
    from dagrpo_sandbox import Limits, Result, SandboxPool, Session

FUNCTION = function_of_text(
    "code_interpreter",
    "Run a Python program and return what it prints.",
    "code",
    "The program. Print what you want to see.",
)


class Config(ToolSection):
    """A Python interpreter."""

    mode: Literal["per_call", "session"] = Field(
        "per_call",
        description="per_call: each program starts afresh; session: programs of a trajectory share their variables.",
    )
    seconds: Seconds = Field(10.0, description="Time limit of one program.")
    memory_mb: Annotated[int, Field(ge=64, le=1 << 24)] = Field(
        512, description="Memory limit in MiB for all processes of a program."
    )
    sessions_memory_mb: Annotated[int, Field(ge=64, le=1 << 24)] = Field(
        4096, description="Memory limit in MiB of all sessions together, while they wait for their next program."
    )
    max_output_characters: Annotated[int, Field(ge=16, le=MOST_CHARACTERS)] = Field(
        16384, description="Most characters that a program may print; one that prints more is stopped."
    )
    processes: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] = Field(
        16, description="Most processes and threads of a program."
    )
    parallel: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] | None = Field(
        None, description="Programs that run at the same time; null: as many as there are CPU cores."
    )

    @model_validator(mode="after")
    def _sessions_are_possible(self) -> Self:
        if self.mode == "session" and self.sessions_memory_mb < self.memory_mb:
            raise UserError(
                "rollout.tools.code_interpreter: sessions_memory_mb is below memory_mb, so that one program could end its own "
                "session: set it to memory_mb or more"
            )
        return self


@asynccontextmanager
async def _open(config: Config, place: ToolPlace) -> AsyncIterator[OpenTool]:
    """Open an interpreter in our own sandboxes. Raises UserError if the machine cannot isolate programs."""
    from dagrpo_sandbox import Limits, SandboxPool, SandboxUnavailable

    limits = Limits(
        seconds=config.seconds,
        memory_mb=config.memory_mb,
        sessions_mb=config.sessions_memory_mb,
        processes=config.processes,
        output_bytes=4 * config.max_output_characters,  # of UTF-8, at most
    )
    async with AsyncExitStack() as stack:
        try:
            pool = await stack.enter_async_context(SandboxPool(limits, size=_parallel(config)))
        except SandboxUnavailable as error:
            raise UserError(f"The tool code_interpreter cannot run here: {error}.") from error
        if config.mode == "session":
            yield SessionInterpreter(pool, limits, config.max_output_characters)
        else:
            yield Interpreter(pool, limits, config.max_output_characters)


def _parallel(config: Config) -> int:
    return config.parallel or os.cpu_count() or 1


TOOL = Tool(
    config=Config,
    functions=lambda config: [FUNCTION],
    open=_open,
    repeatable=lambda config: False,
    parallel=_parallel,
)


class Interpreter(StatelessTool):
    """Interpreter that starts each program afresh."""

    def __init__(self, pool: SandboxPool, limits: Limits, most_characters: int) -> None:
        self._pool = pool
        self._limits = limits
        self._most_characters = most_characters

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the program's output. Raises ToolFailure if it failed, InfrastructureFailure if none could run."""
        result = await available(self._pool.run(arguments["code"]))
        return result_text(result, self._limits, self._most_characters)


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


async def available(result: Awaitable[Result]) -> Result:
    """Return a sandbox's result. Raises InfrastructureFailure if no sandbox is available."""
    from dagrpo_sandbox import SandboxUnavailable

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
