"""mcp: tools of any MCP server, by the official package.

The server is a program on this machine or a URL.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.core.section import Seconds, Texts
from dagrpo.core.user_code import NamedCode
from dagrpo.tools import CallContext, OpenTool, StatelessTool, Tool, ToolFunction, ToolPlace, ToolSection
from dagrpo_agents.mcp_connection import Address, Connection, offered


class Config(ToolSection):
    """The tools of an MCP server."""

    command: Texts = Field([], description="Program and arguments; started once, it speaks the protocol over stdio.")
    environment: Texts = Field(
        [], description="Names of environment variables to pass to the program, beside PATH, HOME and the like."
    )
    url: str | None = Field(None, description="URL of a running server, instead of a command.")
    functions: Texts = Field([], description="Names of the tools to offer; []: all.")
    seconds: Seconds = Field(30.0, description="Time limit for starting and listing its tools.")


class McpTool(StatelessTool):
    """Tool that forwards calls to the server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the server's answer. Raises ToolFailure if the tool failed, InfrastructureFailure if the server is gone."""
        return await self._connection.call(function, arguments)


def _address(config: Config) -> Address:
    if bool(config.command) == bool(config.url):
        raise UserError(
            "rollout.tools.mcp names no server, or two: set rollout.tools.mcp.command or rollout.tools.mcp.url."
        )
    command, environment = tuple(config.command), tuple(config.environment)
    return Address(command=command, environment=environment, url=config.url, seconds=config.seconds)


def _functions(config: Config) -> list[ToolFunction]:
    functions = {function.name: function for function in offered(_address(config))}
    if missing := set(config.functions) - set(functions):
        missing_names, known = ", ".join(sorted(missing)), ", ".join(functions)
        raise UserError(f"rollout.tools.mcp.functions names {missing_names}: the server has {known}.")
    return [functions[name] for name in config.functions or functions]


@asynccontextmanager
async def _open(config: Config, place: ToolPlace) -> AsyncIterator[OpenTool]:
    async with Connection(_address(config), place.folder / "mcp.log") as connection:
        yield McpTool(connection)


TOOL = Tool(
    config=Config,
    functions=_functions,
    code=lambda config: NamedCode.of_command(config.command),
    open=_open,
    repeatable=lambda config: False,
)
