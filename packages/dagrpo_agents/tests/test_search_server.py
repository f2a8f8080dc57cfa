"""Our search server: Search-R1's protocol, and a sentence for every request that is none."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.listening import open_sockets
from tests.tools.retrieval.passages import PASSAGES, corpus, listening

from dagrpo.tools.retrieval.index import Index
from dagrpo_agents.search_server import MOST_BYTES, application


def _posted(data: bytes) -> tuple[int, Any]:
    async def post() -> tuple[int, Any]:
        async with (
            listening(application(Index(PASSAGES))) as url,
            aiohttp.ClientSession() as session,
            session.post(url, data=data) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    return asyncio.run(post())


def _retrieved(**body: Any) -> Any:
    status, answer = _posted(json.dumps(body).encode())
    assert status == 200
    return answer["result"]


def test_passages_come_with_their_scores_where_that_is_asked_for() -> None:
    ((first, *_), nothing) = _retrieved(queries=["Norland", "zzz"], topk=2, return_scores=True)
    assert first["document"] == {"id": "1", "contents": '"Torva"\nTorva is a town in Norland.'}
    assert first["score"] > 0
    assert nothing == []


def test_passages_come_alone_otherwise() -> None:
    assert _retrieved(queries=["Norland"], topk=1) == [
        [{"id": "1", "contents": '"Torva"\nTorva is a town in Norland.'}]
    ]
    assert len(_retrieved(queries=["in"])[0]) == 3  # as many as Search-R1's server gives by default


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"\xff\xfe", "the body is not JSON"),
        (b"[]", "write an object with the key `queries`"),
        (b'{"queries": "town"}', "write an object with the key `queries`"),
        (b'{"queries": [1]}', "`queries` is not a list of at most 256 texts"),
        (json.dumps({"queries": ["a"] * 257}).encode(), "`queries` is not a list of at most 256 texts"),
        (json.dumps({"queries": ["a" * 1001]}).encode(), "at most 1000 characters"),
        (b'{"queries": ["a"], "topk": 101}', "`topk` is not a whole number from 1 to 100"),
        (b'{"queries": ["a"], "topk": -1}', "`topk` is not a whole number from 1 to 100"),
        (b'{"queries": ["a"], "topk": true}', "`topk` is not a whole number from 1 to 100"),
        (b'{"queries": ["a"], "topk": [3]}', "`topk` is not a whole number from 1 to 100"),
    ],
)
def test_what_is_no_request_is_answered_with_422_and_a_sentence(data: bytes, sentence: str) -> None:
    status, answer = _posted(data)
    assert status == 422
    assert isinstance(answer, Mapping)
    assert sentence in answer["detail"]


def test_a_request_that_is_too_large_is_refused() -> None:
    status, _ = _posted(b'{"queries": ["' + b"a" * MOST_BYTES + b'"]}')
    assert status == 413


def test_the_command_serves_on_loopback_alone_until_interrupted(tmp_path: Path) -> None:
    path = corpus(tmp_path / "passages.parquet")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "dagrpo", "search", str(path), "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == f"4 passages at http://127.0.0.1:{port}/retrieve\n"
        asyncio.run(_ask_until_it_listens(port))
        assert [one.split()[:2] for one in open_sockets(server.pid)] == [["127.0.0.1", str(port)]]
    finally:
        os.kill(server.pid, signal.SIGINT)
        assert server.wait(20) in (0, 130, -signal.SIGINT)
        assert server.stdout is not None
        server.stdout.close()


async def _ask_until_it_listens(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            try:
                async with session.post(f"http://127.0.0.1:{port}/retrieve", json={"queries": ["town"]}) as response:
                    assert response.status == 200
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.1)
    raise AssertionError("it never listened")
