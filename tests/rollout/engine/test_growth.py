"""How the work of the engine's client grows with the requests of a step."""

import asyncio
import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.rollout.engine.pools import STARTED_WITH
from tests.rollout.engine.scripted import reply

from dagrpo.records import SamplingRequest
from dagrpo.rollout.engine.client import Endpoint, ServerClient

REQUEST = SamplingRequest(input_ids=(7,), seed=0, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=4)
SIZES = (256, 512, 1024)


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

    server = loop.run_until_complete(asyncio.start_server(answer_all, "127.0.0.1", 0, backlog=1024))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def seconds(address: str, count: int, most_at_once: int) -> float:
    """Return the client's processor seconds for as many requests that come at the same moment."""

    async def ask() -> float:
        client = ServerClient(Endpoint(address=address), 600, most_at_once)
        start = time.thread_time()
        await asyncio.gather(*(client.generate([REQUEST], STARTED_WITH) for _ in range(count)))
        taken = time.thread_time() - start
        await client.close()
        return taken

    return asyncio.run(ask())


def test_the_work_of_free_running_requests_grows_with_their_number() -> None:
    """Without a bound on what is sent at a time the exponent is 1.4 to 1.7: httpcore looks through every open connection."""
    with answering() as address:
        seconds(address, 64, 64)  # imports, and the first connections
        taken = [min(seconds(address, size, 64) for _ in range(2)) for size in SIZES]
    exponent = math.log(taken[-1] / taken[0]) / math.log(SIZES[-1] / SIZES[0])
    assert exponent < 1.25, taken
