"""How the work of the engine's client grows with the requests of a step."""

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import httpcore
import pytest
from tests.engine.pools import STARTED_WITH
from tests.engine.scripted import reply

from dagrpo.core.types import SamplingRequest
from dagrpo.engine.http import Endpoint
from dagrpo.engine.sglang.client import ServerClient

REQUEST = SamplingRequest(input_ids=(7,), seed=0, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=4)
SIZES = (64, 128, 256)


@contextmanager
def answering() -> Iterator[str]:
    """A server in a thread of its own that answers every request with the same completion; its address."""
    body = json.dumps([reply(7)]).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    loop = asyncio.new_event_loop()

    async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                (length,) = (
                    line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
                )
                await reader.readexactly(int(length))
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def end() -> None:
        server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    server = loop.run_until_complete(asyncio.start_server(answer_all, "127.0.0.1", 0, backlog=1024))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def looks(address: str, count: int, most_at_once: int) -> int:
    """Return how often httpcore looks at a connection for as many requests that come at the same moment."""
    looked = 0
    is_idle = httpcore.AsyncHTTPConnection.is_idle

    def counted(connection: httpcore.AsyncHTTPConnection) -> bool:
        nonlocal looked
        looked += 1
        return is_idle(connection)

    async def ask() -> None:
        client = ServerClient(Endpoint(address=address), 600, most_at_once)
        await asyncio.gather(*(client.generate([REQUEST], STARTED_WITH) for _ in range(count)))
        await client.close()

    with mock.patch.object(httpcore.AsyncHTTPConnection, "is_idle", counted):
        asyncio.run(ask())
    return looked


@pytest.mark.parametrize(
    ("most_at_once", "grows"), [(16, (0.0, 1.2)), (256, (1.5, 3.0))], ids=["bounded", "all at once"]
)
def test_what_httpcore_looks_at_grows_with_the_requests_only_where_few_are_sent_at_a_time(
    most_at_once: int, grows: tuple[float, float]
) -> None:
    with answering() as address:
        counts = [looks(address, size, most_at_once) for size in SIZES]
    exponent = math.log(counts[-1] / counts[0]) / math.log(SIZES[-1] / SIZES[0])
    assert grows[0] < exponent < grows[1], counts
