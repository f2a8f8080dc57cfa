"""Transports of MCP that bound a server's message.

Those of the official package read a line of a program, or a JSON body, without limit, and check each value several times while the
event loop waits.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from dagrpo.core.untrusted_json import read_json
from dagrpo.tools.retrieval.client import MOST_BYTES

if TYPE_CHECKING:
    from anyio.abc import Process
    from httpx2 import Response
    from mcp import StdioServerParameters

MOST_OPENED = 20_000  # brackets and braces of a message, which take a second to check
SECONDS_TO_END = 2.0  # for a program whose stdin is closed, and again after SIGTERM


@asynccontextmanager
async def program(
    server: "StdioServerParameters", log: TextIO, report: Callable[[str], None]
) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams of a program that is started here, and ended with its children.

    report: called with the reason, if the stream of answers ends because of a line that is too long or no message.
    """
    import anyio
    from mcp.client.stdio import get_default_environment
    from mcp.os.posix.utilities import terminate_posix_process_tree

    environment = get_default_environment() | (server.env or {})
    process = await anyio.open_process(
        [server.command, *server.args], env=environment, stderr=log, start_new_session=True
    )
    incoming, read = anyio.create_memory_object_stream[Any](0)
    write, outgoing = anyio.create_memory_object_stream[Any](0)
    try:
        async with anyio.create_task_group() as tasks, incoming, read, write, outgoing:
            tasks.start_soon(_receive, process, incoming, report)
            tasks.start_soon(_send, process, outgoing, incoming)
            yield read, write
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await process.stdin.aclose()  # type: ignore[union-attr]  # a pipe
            with anyio.move_on_after(SECONDS_TO_END):
                while process.returncode is None:
                    await anyio.sleep(0.01)
            await terminate_posix_process_tree(process, SECONDS_TO_END)
            await process.aclose()


async def _receive(process: "Process", incoming: Any, report: Callable[[str], None]) -> None:
    """Forward each line as a message, and close the stream at the end of the output."""
    import anyio
    from anyio.streams.buffered import BufferedByteReceiveStream
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter
    from pydantic import ValidationError

    assert process.stdout is not None
    lines = BufferedByteReceiveStream(process.stdout)
    try:
        while True:
            line = await lines.receive_until(b"\n", MOST_BYTES)
            if b'"jsonrpc"' not in line:
                continue  # a program's log
            try:
                value = read_json(line, constants=True, most_opened=MOST_OPENED)
                message = jsonrpc_message_adapter.validate_python(value, by_name=False)
            except ValueError as error:  # whatever it was to answer would wait for ever
                fault = "it is none" if isinstance(error, ValidationError) else str(error)
                report(f"answered with a line that is no message of the protocol ({fault})")
                await incoming.aclose()
                return
            await incoming.send(SessionMessage(message))
    except anyio.DelimiterNotFound:
        report(_too_long())
        await incoming.aclose()
    except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
        await incoming.aclose()


async def _send(process: "Process", outgoing: Any, incoming: Any) -> None:
    """Forward messages; close the stream of answers if the program takes no more."""
    import anyio

    assert process.stdin is not None
    try:
        async for each in outgoing:
            await process.stdin.send(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        await incoming.aclose()


@asynccontextmanager
async def address(url: str) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams of a server at a URL; a call whose answer is too long fails."""
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client  # with the package's time limits

    client = create_mcp_http_client(headers={"Accept-Encoding": "identity"})
    client.event_hooks = {"response": [_bound]}
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=MOST_BYTES) as streams:
        yield streams


async def _bound(response: "Response") -> None:
    """Bound a body, and each event of a stream of events. A compressed one is not decompressed."""
    from httpx2 import AsyncByteStream, StreamError

    has_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")

    class Bounded(AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            count = opened = 0
            async for chunk in self._stream:
                if has_events and (end := max(map(chunk.rfind, (b"\n\n", b"\r\r", b"\r\n\r\n")))) >= 0:
                    count = opened = 0
                    last = chunk[end:]
                else:
                    last = chunk
                count += len(last)
                opened += last.count(b"[") + last.count(b"{")
                if count > MOST_BYTES:
                    raise StreamError(_too_long())
                if opened > MOST_OPENED:
                    raise StreamError(f"answered with more than {MOST_OPENED} brackets")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    response.headers.pop("content-encoding", None)
    response.stream = Bounded(response.stream)


def _too_long() -> str:
    return f"answered with more than {MOST_BYTES} bytes"
