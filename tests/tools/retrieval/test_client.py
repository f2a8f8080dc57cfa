"""The client of Search-R1's protocol: whatever a server does ends in an answer or in a failure that names the server."""

import asyncio
import socket
from collections.abc import Sequence

import pytest
from aiohttp import web
from tests.loopback import Handler, hang
from tests.tools.retrieval.passages import answering, flood, listening

from dagrpo.tools import InfrastructureFailure
from dagrpo.tools.retrieval.client import Limits, SearchClient

LIMITS = Limits(topk=2, seconds=5.0, retries=0, cached=2)


def _found(app: web.Application, queries: Sequence[str], limits: Limits = LIMITS) -> list[list[str]]:
    async def find() -> list[list[str]]:
        async with listening(app) as url, SearchClient(url, limits) as client:
            return [await client.search(query) for query in queries]

    return asyncio.run(find())


def _fails(handler: Handler, limits: Limits = LIMITS) -> str:
    with pytest.raises(InfrastructureFailure, match=r"^http://127\.0\.0\.1:\d+/retrieve ") as failure:
        _found(answering(handler), ["town"], limits)
    return str(failure.value)


def _says(text: str, status: int = 200) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    return answer


def test_both_forms_of_an_answer_are_read_and_no_more_than_asked_for() -> None:
    scored = '{"result": [[{"document": {"id": "1", "contents": "a"}, "score": 0.5}]]}'
    plain = '{"result": [[{"id": "1", "contents": "a"}, {"contents": "b"}, {"contents": "c"}]]}'
    assert _found(answering(_says(scored)), ["x"]) == [["a"]]
    assert _found(answering(_says(plain)), ["x"]) == [["a", "b"]]


def test_a_known_query_is_not_sent_again_until_it_is_forgotten() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.extend((await request.json())["queries"])
        return web.json_response({"result": [[{"contents": asked[-1]}]]})

    assert _found(answering(answer), ["a", "a", "b", "a", "c", "b"]) == [["a"], ["a"], ["b"], ["a"], ["c"], ["b"]]
    assert asked == ["a", "b", "c", "b"]  # of two that are kept, b was the one not asked for lately


def test_a_server_that_fails_once_is_asked_again() -> None:
    tries: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        tries.append(1)
        return web.json_response({"result": [[]]}) if len(tries) > 1 else web.Response(status=500)

    assert _found(answering(answer), ["x"], Limits(topk=1, seconds=5.0, retries=1, cached=1)) == [[]]
    assert len(tries) == 2


@pytest.mark.parametrize(("status", "text"), [(500, "out of memory" * 1000), (422, "no")])
def test_a_server_that_fails_or_refuses_is_named_with_what_it_said(status: int, text: str) -> None:
    assert f"answered {status}: {text[:13]}" in _fails(_says(text, status=status))


def test_a_server_that_hangs_is_not_waited_for() -> None:
    assert "did not answer within 0.2 s" in _fails(hang, Limits(topk=1, seconds=0.2, retries=1, cached=1))


def test_a_hundred_megabytes_are_not_read() -> None:
    assert "answered with more than 8388608 bytes" in _fails(flood)


@pytest.mark.parametrize(
    "answer",
    [
        "", "<html>", "[]", "{}", '{"result": []}', '{"result": [[], []]}', '{"result": [5]}', '{"result": [["a"]]}',
        '{"result": [[{"contents": 3}]]}', '{"result": {"a": 1}}', '{"result": [[{"document": 3}]]}', "[" * 100_000, "\x00",
    ],
)  # fmt: skip
def test_an_answer_in_another_protocol_is_no_answer(answer: str) -> None:
    assert "did not answer in Search-R1's protocol" in _fails(_says(answer))


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/retrieve"

    async def find() -> None:
        async with SearchClient(url, LIMITS) as client:
            await client.search("x")

    with pytest.raises(InfrastructureFailure, match=f"{url} cannot be asked"):
        asyncio.run(find())
