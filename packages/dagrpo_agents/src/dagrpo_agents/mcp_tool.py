"""mcp: tools of any MCP server, by the official package.

The server is a program on this machine or a URL.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.core.section import Seconds, Texts
from dagrpo.core.user_code import NamedCode
from dagrpo.tools import (
    CallContext,
    InfrastructureFailure,
    OpenTool,
    StatelessTool,
    Tool,
    ToolFailure,
    ToolFunction,
    ToolPlace,
    ToolSection,
)
from dagrpo_agents import mcp_transport

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult


DIED = "died"
MOST_TOOLS = 10_000
MOST_LOG_BYTES = 8 << 20  # of what a program writes to stderr: beyond, the file begins again
SECONDS_BETWEEN_LOOKS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address of a server: a program with its arguments, or a URL."""

    command: tuple[str, ...]
    environment: tuple[str, ...]  # names of variables that the program gets beside the usual ones
    url: str | None
    seconds: float  # to start and to answer the first questions

    def __str__(self) -> str:
        return self.url or " ".join(self.command)


class Connection:
    """Client in a separate task, as the task that opens one has to close it."""

    def __init__(self, address: Address, log: Path) -> None:
        self._address = address
        self._log = log
        self._lock = asyncio.Lock()
        self._closing = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._fault = DIED  # how the last connection ended

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._close()

    async def functions(self) -> list[ToolFunction]:
        """Return the server's tools. Raises InfrastructureFailure if it does not list them."""
        client = await self._connected()
        try:
            async with asyncio.timeout(self._address.seconds):
                page = await client.list_tools()
                tools = [*page.tools]
                while page.next_cursor is not None and len(tools) < MOST_TOOLS:
                    page = await client.list_tools(cursor=page.next_cursor)
                    tools += page.tools
        except Exception as error:  # the border to other people's programs
            raise InfrastructureFailure(f"{self._address} does not say what it offers: {_reason(error)}") from error
        if page.next_cursor is not None:
            raise InfrastructureFailure(f"{self._address} does not say what it offers: it lists tools without end.")
        return [
            ToolFunction(name=tool.name, description=tool.description or tool.name, parameters=dict(tool.input_schema))
            for tool in tools
        ]

    async def call(self, function: str, arguments: Mapping[str, Any]) -> str:
        """Return the result of a call. Raises ToolFailure with the tool's error, InfrastructureFailure if the server is gone."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        client = await self._connected()
        try:
            return _text(await client.call_tool(function, dict(arguments)))
        except ToolFailure:
            raise
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise ToolFailure(error.message) from error
            await self._lose(client)
            raise InfrastructureFailure(f"{self._address} {self._fault} in a call of {function}.") from error
        except Exception as error:  # the border to other people's programs
            await self._lose(client)
            raise InfrastructureFailure(f"{self._address} failed in {function}: {_reason(error)}") from error

    async def _connected(self) -> "Client":
        async with self._lock:
            if self._client is None:
                self._client = await self._open()
            return self._client

    async def _lose(self, client: "Client") -> None:
        """Close the connection, so that the next call connects again, unless another has done so."""
        async with self._lock:
            if self._client is client:
                await self._close()

    async def _open(self) -> "Client":
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(ready, self._closing))
        try:
            async with asyncio.timeout(self._address.seconds):
                return await asyncio.shield(ready)
        except Exception as error:  # the border to other people's programs
            self._keeper.cancel()
            await self._close()
            raise InfrastructureFailure(
                f"{self._address} cannot be reached: {_reason(error)}.{self._program_output()}"
            ) from error

    async def _keep(self, ready: "asyncio.Future[Client]", closing: asyncio.Event) -> None:
        from mcp import Client, StdioServerParameters

        self._fault = DIED
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a") as log:
                if self._address.url is not None:
                    server = mcp_transport.address(self._address.url)
                else:
                    program, *arguments = self._address.command
                    passed = {name: os.environ[name] for name in self._address.environment if name in os.environ}
                    server = mcp_transport.program(
                        StdioServerParameters(command=program, args=arguments, env=passed), log, self._blame
                    )
                async with Client(server) as client:
                    # It would match a result with the server's schema, whose patterns may take exponential time.
                    client.session.validate_tool_result = _accept  # type: ignore[method-assign]
                    if not ready.done():
                        ready.set_result(client)
                    while not closing.is_set():
                        with suppress(TimeoutError):
                            await asyncio.wait_for(closing.wait(), SECONDS_BETWEEN_LOOKS)
                        if os.fstat(log.fileno()).st_size > MOST_LOG_BYTES:
                            log.truncate(0)  # the program appends to it
        except Exception as error:  # noqa: BLE001 - its caller raises it; later calls report it as they fail
            if not ready.done():
                ready.set_exception(error)

    def _blame(self, fault: str) -> None:
        self._fault = fault

    async def _close(self) -> None:
        keeper, self._keeper, self._client = self._keeper, None, None
        self._closing.set()
        if keeper is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.wait([keeper])

    def _program_output(self) -> str:
        try:
            output = self._log.read_text(errors="replace").strip()[-500:]
        except OSError:  # no program was started that could have written there
            output = ""
        return f" It said: {output.rstrip('.')}." if output else ""


async def _accept(name: str, result: "CallToolResult") -> None:
    """Accept a result as it is."""


def _text(result: "CallToolResult") -> str:
    parts: Sequence[Any] = result.content
    texts = [part.text if part.type == "text" else f"[{part.type}]" for part in parts]
    text = "\n".join(texts) or json.dumps(result.structured_content, ensure_ascii=False)
    if result.is_error:
        raise ToolFailure(text)
    return text


def _reason(error: BaseException) -> str:
    """Return the innermost error, without the groups that anyio wraps it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".removesuffix(": ")


@lru_cache
def offered(address: Address) -> tuple[ToolFunction, ...]:
    """Return the tools that a server offers, asked once. Raises UserError if it cannot be asked.

    In a thread with a separate loop, since the caller may be in a loop.
    """

    async def ask() -> list[ToolFunction]:
        with tempfile.TemporaryDirectory() as folder:
            async with Connection(address, Path(folder) / "mcp.log") as connection:
                return await connection.functions()

    try:
        with ThreadPoolExecutor(1) as thread:
            return tuple(thread.submit(asyncio.run, ask()).result())
    except InfrastructureFailure as failure:
        raise UserError(f"rollout.tools.mcp: {failure} Start the server by hand to see why.") from failure


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
