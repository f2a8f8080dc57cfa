"""How the work of the engine's client grows with the requests of a step, and what waits for them."""

import asyncio
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.engine.conftest import MakePool, Serve
from tests.engine.pools import STARTED_WITH
from tests.engine.scripted import Hangup, reply
from tests.engine.test_abort import LONG, Slow
from tests.engine.test_pool import at, request

from dagrpo.core.types import SamplingRequest
from dagrpo.engine.errors import RequestsAborted, ServerUnreachable
from dagrpo.engine.http import Endpoint
from dagrpo.engine.sglang.client import ServerClient

REQUEST = SamplingRequest(input_ids=(7,), seed=0, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=4)
SIZES = (64, 512)
# A server in a process of its own, which answers every request with the same bytes, and prints its port.
PROGRAM = """
import asyncio, sys
answer = sys.argv[1].encode()
answer = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(answer) + answer

async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            length = next(line for line in head.lower().split(b"\\r\\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
            writer.write(answer)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@contextmanager
def answering() -> Iterator[str]:
    """The address of a server that answers every request with the same completion."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([reply(7)])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.kill()


def test_sessions_cost_as_much_as_their_number_and_few_sockets(pool_of: MakePool) -> None:
    with answering() as address:
        pool = pool_of(Endpoint(address=address), timeout=60)

        def cost(count: int) -> tuple[int, int]:
            """Return how many functions this thread calls, and the sockets that are left."""

            async def ask() -> None:
                await asyncio.gather(*(pool.complete(REQUEST, str(at), abortable=True) for at in range(count)))

            before, calls = len(os.listdir("/proc/self/fd")), Counter[str]()
            sys.setprofile(lambda frame, event, argument: calls.update([event]))
            try:
                asyncio.run(ask())
            finally:
                sys.setprofile(None)
            return calls["call"] + calls["c_call"], len(os.listdir("/proc/self/fd")) - before

        cost(SIZES[0])
        costs = [cost(size) for size in SIZES]
    assert math.log(costs[-1][0] / costs[0][0]) / math.log(SIZES[-1] / SIZES[0]) < 1.25, costs
    assert max(sockets for _, sockets in costs) <= 256


async def _aborted(client: ServerClient, slow: Slow) -> list[Any]:
    """What 40 requests end with: those with even numbers are aborted behind one that takes until it is released."""
    first = asyncio.ensure_future(client.generate([request(1, LONG)], STARTED_WITH, ["first"]))
    await asyncio.to_thread(slow.asked.wait, 20)
    works = [asyncio.ensure_future(client.generate([request(7)], STARTED_WITH, [str(n)])) for n in range(40)]
    await asyncio.sleep(0)
    await client.abort([str(number) for number in range(0, 40, 2)])
    aborted = await asyncio.wait_for(asyncio.gather(*works[::2], return_exceptions=True), 20)
    assert not first.done()
    await asyncio.wait_for(client.empty_cache(), 20)
    works[1].cancel()
    slow.release()
    rest = await asyncio.gather(first, *works[1::2], return_exceptions=True)
    return [*aborted, *rest]


def test_what_waits_for_its_turn_is_aborted_at_once_and_other_requests_do_not_wait(serve: Serve) -> None:
    slow = Slow()
    server = serve(slow)

    async def ask() -> list[Any]:
        client = ServerClient(at(server), 60, most_at_once=1)
        try:
            return await _aborted(client, slow)
        finally:
            await client.close()

    results = asyncio.run(ask())
    assert all(isinstance(result, RequestsAborted) and result.completions == () for result in results[:20])
    assert isinstance(results[21], asyncio.CancelledError)
    assert [result[0].token_ids for result in results[22:]] == [(7,)] * 19, "no turn is lost"
    assert "/abort_request" not in server.paths, "the server knows none of them"
    assert [body["rid"][0] for path, body in server.asked if "rid" in body] == ["first", *map(str, range(3, 40, 2))]


def test_what_waits_for_a_server_that_has_died_fails_without_a_connection(serve: Serve) -> None:
    def hang_up(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        raise Hangup

    server = serve(hang_up)

    async def ask() -> list[Any]:
        client = ServerClient(at(server), 60, most_at_once=2)
        works = [client.generate([request(7)], STARTED_WITH) for _ in range(40)]
        failures = await asyncio.gather(*works, return_exceptions=True)
        await client.close()
        return failures

    assert {type(failure) for failure in asyncio.run(ask())} == {ServerUnreachable}
    assert len(server.asked) <= 8, "two at a time, each tried twice"
