"""The page of `dagrpo serve`: who may ask, what a wrong request is answered, and what the browser is allowed."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from dagrpo.core.errors import UserError
from dagrpo.core.types import Row
from dagrpo_agents import strangers
from dagrpo_agents.serve.site import Site

ROW = Row(prompt=({"role": "user", "content": "1+2=?"},), question="1+2=?", answer="", ground_truth="3")
ANSWER = {"role": "assistant", "content": "<b>3</b>"}
Ask = Callable[..., Awaitable[tuple[int, Any]]]


class Echo:
    """A policy with one answer, which notes what it was asked."""

    name = "trained"

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []

    def problem(self, number: int) -> Row:
        return ROW

    def forget(self) -> None:
        self.asked.clear()

    def answer(self, text: str, *, greedy: bool) -> list[dict[str, Any]]:
        if text == "long":
            raise UserError("The conversation has 300 tokens, and there is room for 256: begin a new one.")
        self.asked.append((text, greedy))
        return [ANSWER]


pytestmark = pytest.mark.anyio


@pytest.fixture
def policy() -> Echo:
    return Echo()


@pytest.fixture
def site(policy: Echo) -> Site:
    return Site([policy])  # type: ignore[list-item]


@pytest.fixture
async def client(site: Site) -> AsyncIterator[TestClient[Any, Any]]:
    async with asyncio.timeout(30), TestClient(TestServer(site.application())) as opened:
        yield opened


@pytest.fixture
def ask(site: Site, client: TestClient[Any, Any]) -> Ask:
    async def post(path: str, body: Any, key: str = site.key) -> tuple[int, Any]:
        data = body if isinstance(body, str) else json.dumps(body)
        answer = await client.post(path, data=data, headers={"Authorization": f"Bearer {key}"})
        return answer.status, await answer.json()

    return post


async def test_the_page_talks_to_each_policy_and_begins_anew(policy: Echo, ask: Ask) -> None:
    assert await ask("/policies", {}) == (200, ["trained"])
    assert await ask("/problem", {"number": 0}) == (200, {"text": "1+2=?", "ground_truth": "3"})
    assert await ask("/answer", {"policy": "trained", "text": "1+2=?", "greedy": True}) == (200, [ANSWER])
    assert policy.asked == [("1+2=?", True)]
    assert await ask("/forget", {}) == (200, {})
    assert policy.asked == []


async def test_without_the_key_nothing_is_answered(policy: Echo, ask: Ask, client: TestClient[Any, Any]) -> None:
    for path in ("/policies", "/problem", "/answer", "/forget"):
        status, body = await ask(path, {"policy": "trained", "text": "", "greedy": False}, "guess")
        assert (status, "open the address" in body["error"]) == (401, True)
        assert (await client.post(path, json={})).status == 401
    assert policy.asked == []


async def test_a_request_of_another_form_is_refused_in_a_sentence(ask: Ask) -> None:
    assert await ask("/answer", [1]) == (400, {"error": "The body is not a JSON object."})
    assert (await ask("/answer", {"policy": "other", "text": "a", "greedy": False}))[0] == 400
    assert (await ask("/problem", {"number": "x"}))[0] == 400
    for body in (
        '{"number": 1e999}',
        '{"number": NaN}',
        '{"number": 1, "number": 2}',
        "[" + "[]," * 250_000 + "1]",
    ):
        assert (await ask("/problem", body))[0] == 400
    status, body = await ask("/answer", {"policy": "trained", "text": "long", "greedy": False})
    assert (status, "begin a new one" in body["error"]) == (400, True)


async def test_a_body_that_takes_long_to_read_holds_no_other_request(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def slow(text: str) -> Any:
        assert "slow" not in text or answered.wait(20), "the other request is not answered"
        return json.loads(text)

    monkeypatch.setattr("dagrpo_agents.serve.site.read_json", slow)
    first = asyncio.ensure_future(ask("/problem", {"number": 0, "slow": True}))
    await asyncio.sleep(0.1)
    assert (await ask("/policies", {}))[0] == 200
    answered.set()
    assert (await first)[0] == 200


async def test_the_page_runs_its_own_script_alone(client: TestClient[Any, Any]) -> None:
    page = await client.get("/")
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    script = await (await client.get("/page.js")).text()
    assert "innerHTML" not in script, "what a policy writes is shown as text"


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /answer HTTP/1.1\r\nX: "])
async def test_a_connection_without_the_key_is_closed_in_time(
    site: Site, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(strangers, "STRANGER_SECONDS", 0.2)
    async with strangers.listen(site.application(), site.strangers.connect) as port, ClientSession() as http:
        key, page = {"Authorization": f"Bearer {site.key}"}, f"http://{strangers.HOST}:{port}"
        async with http.post(f"{page}/policies", json={}, headers=key) as answer:
            assert answer.status == 200
        reader, writer = await asyncio.open_connection(strangers.HOST, port)
        writer.write(sent)
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
        assert len(site.strangers._timers) == 0
