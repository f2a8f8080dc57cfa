"""A request waits for as long as its server makes progress, and not longer."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from tests.loopback import answering, listening

from dagrpo.engine.errors import ServerError
from dagrpo.engine.http import Endpoint, HttpServer

LIMIT = 0.5  # seconds
COUNTS = "/counts"
Answer = Callable[[web.Request], Awaitable[web.Response]]


async def _ask(requests: int, answer: Answer, counts: Answer) -> list[bytes | BaseException]:
    """Return the answers, or errors, of as many requests at once to a server with these two pages."""
    application = answering("/generate", answer)
    application.router.add_get(COUNTS, counts)
    async with listening(application) as address:
        server = HttpServer(Endpoint(address=address), LIMIT, COUNTS)
        try:
            return await asyncio.gather(
                *(server.post("/generate", {}) for _ in range(requests)), return_exceptions=True
            )
        finally:
            await server.close()


def _page(number: Callable[[], int]) -> Answer:
    """Return a page of counts, with a time that always changes."""

    async def page(_: web.Request) -> web.Response:
        return web.json_response(
            {"timestamp": time.monotonic(), "loads": [{"timestamp": time.time(), "tokens": number()}]}
        )

    return page


def test_a_request_in_a_queue_of_many_times_the_limit_is_answered() -> None:
    one_at_a_time = asyncio.Lock()

    async def answer(_: web.Request) -> web.Response:
        async with one_at_a_time:
            await asyncio.sleep(LIMIT / 4)
        return web.Response(body=b"{}")

    assert asyncio.run(_ask(16, answer, _page(lambda: 0))) == [b"{}"] * 16


def test_a_long_answer_is_awaited_while_tokens_are_written() -> None:
    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(5 * LIMIT)
        return web.Response(body=b"{}")

    written = iter(range(1_000))
    assert asyncio.run(_ask(2, answer, _page(lambda: next(written)))) == [b"{}"] * 2


def test_all_requests_of_a_server_that_stalls_fail() -> None:
    asked = 0

    def tokens() -> int:
        nonlocal asked
        asked += 1
        return 7

    answers = asyncio.run(_ask(20, _stall, _page(tokens)))
    assert all(isinstance(each, ServerError) and "made no progress" in str(each) for each in answers)
    assert asked < 2 + 20  # one request asks for all that wait


async def _stall(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError("it stalls for ever")


def test_a_server_without_counts_fails_after_the_limit() -> None:
    async def absent(_: web.Request) -> web.Response:
        raise web.HTTPNotFound

    (answered,) = asyncio.run(_ask(1, _stall, absent))
    assert isinstance(answered, ServerError)
