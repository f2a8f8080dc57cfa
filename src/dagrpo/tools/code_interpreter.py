"""code_interpreter: runs Python in a sandbox, optionally in a session with variables."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import MOST_CHARACTERS, MOST_PROCESSES, Seconds
from dagrpo.core.urls import mistake_in_server
from dagrpo.tools import OpenTool, Tool, ToolPlace, ToolSection, function_of_text

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
    sandbox_fusion: str | None = Field(
        None, description="URL of a Sandbox Fusion server, such as http://127.0.0.1:8080; null: local sandboxes."
    )

    @model_validator(mode="after")
    def _sandbox_fusion_can_do_it(self) -> Self:
        if self.sandbox_fusion is None:
            return self
        if mistake := mistake_in_server(self.sandbox_fusion):
            raise UserError(
                f"the address in rollout.tools.code_interpreter.sandbox_fusion {mistake}: write it as http://127.0.0.1:8080"
            )
        if self.mode == "session":
            raise UserError("Sandbox Fusion keeps no variables: set rollout.tools.code_interpreter.mode to per_call")
        for name in ("processes", "sessions_memory_mb"):
            if getattr(self, name) != (default := Config.model_fields[name].default):
                raise UserError(
                    f"Sandbox Fusion has no such limit as rollout.tools.code_interpreter.{name}: leave it at {default}, and limit "
                    "the server itself"
                )
        return self

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
    from dagrpo.tools.connections.interpreter import fusion_interpreter, local_interpreter
    from dagrpo_sandbox import Limits

    limits = Limits(
        seconds=config.seconds,
        memory_mb=config.memory_mb,
        sessions_mb=config.sessions_memory_mb,
        processes=config.processes,
        output_bytes=4 * config.max_output_characters,  # of UTF-8, at most
    )
    async with (
        fusion_interpreter(config.sandbox_fusion, limits, config.max_output_characters)
        if config.sandbox_fusion
        else local_interpreter(limits, config.max_output_characters, config.parallel, keep=config.mode == "session")
    ) as interpreter:
        yield interpreter


def _parallel(config: Config) -> int | None:
    return config.parallel or (None if config.sandbox_fusion else os.cpu_count())


TOOL = Tool(
    config=Config,
    functions=lambda config: [FUNCTION],
    open=_open,
    repeatable=lambda config: False,
    parallel=_parallel,
)
