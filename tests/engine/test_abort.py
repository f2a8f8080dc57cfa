"""Requests that are aborted: they end at the server, nothing that was written for them is used, and others go on."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.engine.conftest import MakePool, Serve
from tests.engine.scripted import Echo, Hangup, ScriptedServer, reply
from tests.engine.test_pool import at, request

from dagrpo.core.types import Completion
from dagrpo.engine.errors import ServerError
from dagrpo.engine.interface import Aborted
from dagrpo.engine.pool import ServerPool

LONG = 50  # the token whose completion takes until it is aborted


class Slow(Echo):
    """Answers prompts that end in LONG only when they are aborted; each has then written `tokens`. Others at once.

    It knows a request only when it was aborted `deaf` times before, as one that is still on its way.
    """

    def __init__(self, *, tokens: int = 3, deaf: int = 0) -> None:
        super().__init__()
        self.tokens = tokens
        self.asked = threading.Event()  # for a LONG one
        self.aborted: list[str] = []
        self._deaf = deaf
        self._released = False
        self._over = threading.Condition()

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/abort_request":
            with self._over:
                self._deaf -= 1
                if self._deaf < 0:
                    self.aborted.append(body["rid"])
                self._over.notify_all()
            return 200, None
        if path == "/generate" and any(prompt[-1] == LONG for prompt in body["input_ids"]) and "rid" in body:
            self.asked.set()
            with self._over:
                assert self._over.wait_for(lambda: self._released or {*body["rid"]} <= {*self.aborted}, timeout=20)
            return 200, [self._cut(prompt[-1]) for prompt in body["input_ids"]]
        return super().__call__(path, body)

    def release(self) -> None:
        """Let go of who still waits."""
        with self._over:
            self._released = True
            self._over.notify_all()

    def _cut(self, token: int) -> dict[str, Any]:
        cut = reply(token, self._version, reason={"type": "abort", "message": "Aborted"})
        logprobs = cut["meta_info"]["output_token_logprobs"] * self.tokens
        return {
            "output_ids": [token] * self.tokens,
            "meta_info": cut["meta_info"] | {"output_token_logprobs": logprobs},
        }


def _tokens(aborted: Sequence[Aborted]) -> int:
    return sum(len(each.completion.token_ids) for each in aborted)


async def _cut_off(pool: ServerPool, slow: Slow, *sessions: str) -> list[Aborted]:
    """What two requests in each of some sessions have written when they are cut off on their way."""
    works = [
        asyncio.ensure_future(pool.complete(request(1, LONG, seed=seed), session, abortable=True))
        for session in sessions
        for seed in range(2)
    ]
    await asyncio.to_thread(slow.asked.wait, 20)
    for work in works:
        work.cancel()
    aborted = await pool.abort(sessions)
    await asyncio.wait(works)
    assert all(work.cancelled() for work in works)
    return aborted


def _bodies(server: ScriptedServer) -> list[dict[str, Any]]:
    return [body for path, body in server.asked if path == "/generate" and "rid" in body]


def test_what_is_asked_for_apart_is_one_http_request_for_each_session(serve: Serve, pool_of: MakePool) -> None:
    server = serve()
    pool = pool_of(at(server))

    async def ask() -> list[Completion]:
        works = [pool.complete(request(1, 2 + at // 2, seed=at), str(at // 2), abortable=True) for at in range(6)]
        return await asyncio.gather(*works)

    assert [completion.token_ids for completion in asyncio.run(ask())] == [(2 + at // 2,) for at in range(6)]
    bodies = _bodies(server)
    assert sorted(body["input_ids"] for body in bodies) == [[[1, token]] * 2 for token in (2, 3, 4)]
    identifiers = [identifier for body in bodies for identifier in body["rid"]]
    assert len({*identifiers}) == 6


def test_aborted_requests_end_at_their_server_and_return_what_they_had_written(serve: Serve, pool_of: MakePool) -> None:
    slow = Slow(tokens=3)
    server = serve(slow)
    pool = pool_of(at(server), timeout=60)

    async def ask() -> tuple[list[Aborted], Completion]:
        other = asyncio.ensure_future(pool.complete(request(7), "other", abortable=True))
        aborted = await _cut_off(pool, slow, "a")
        return aborted, await other

    aborted, other = asyncio.run(ask())
    assert [(each.session, each.request.seed) for each in aborted] == [("a", 0), ("a", 1)]
    assert {each.completion.token_ids for each in aborted} == {(LONG,) * 3}
    assert {(each.completion.finish_reason, each.completion.weight_version) for each in aborted} == {
        ("abort", "default")
    }
    assert other.token_ids == (7,), "nobody has aborted it"
    (cut,) = [body for body in _bodies(server) if body["input_ids"][0][-1] == LONG]
    assert slow.aborted == cut["rid"]
    assert asyncio.run(pool.complete(request(1), "a", abortable=True)).token_ids == (1,), "the session may go on"


def test_requests_that_their_server_did_not_know_yet_are_aborted_again(serve: Serve, pool_of: MakePool) -> None:
    slow = Slow(deaf=3)
    pool = pool_of(at(serve(slow)), timeout=60)
    assert _tokens(asyncio.run(_cut_off(pool, slow, "a"))) == 6
    assert len(slow.aborted) >= 2


def test_a_server_that_dies_while_its_requests_are_aborted_is_given_up_and_the_others_go_on(
    serve: Serve, pool_of: MakePool, capsys: pytest.CaptureFixture[str]
) -> None:
    class Dying(Slow):
        def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
            if path == "/abort_request":
                with self._over:
                    self.aborted += [each for asked in _bodies(dying_server) for each in asked["rid"]]
                    self._over.notify_all()
                raise Hangup
            answer = super().__call__(path, body)
            if "rid" in body:
                raise Hangup
            return answer

    dying = Dying()
    dying_server = serve(dying)
    pool = pool_of(at(dying_server), at(serve()), timeout=60)
    assert asyncio.run(_cut_off(pool, dying, "a")) == []
    assert "Its work is repeated by the other 1." in capsys.readouterr().err
    assert asyncio.run(pool.complete(request(7), "a", abortable=True)).token_ids == (7,)


def test_the_last_server_that_dies_while_its_requests_are_aborted_is_an_error(serve: Serve, pool_of: MakePool) -> None:
    slow = Slow()
    server = serve(slow)
    pool = pool_of(at(server), timeout=60)

    async def ask() -> None:
        work = asyncio.ensure_future(pool.complete(request(1, LONG), "a", abortable=True))
        await asyncio.to_thread(slow.asked.wait, 20)
        server.stop()
        try:
            await pool.abort({"a"})
        finally:
            work.cancel()
            slow.release()

    with pytest.raises(ServerError, match="cannot be reached"):
        asyncio.run(ask())
