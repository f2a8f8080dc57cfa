"""Who may ask, and what a program is told that asks in vain."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession
from packages.dagrpo_agents.tests.scripted_policy import PlainChat, ScriptedPolicy, session_with

from dagrpo.core.errors import UserError
from dagrpo.core.types import Completion
from dagrpo.engine.errors import ServerError
from dagrpo_agents import strangers
from dagrpo_agents.gateway import server
from dagrpo_agents.gateway.requests import read_request
from dagrpo_agents.gateway.server import Gateway, open_gateway

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "1+2=?"}]}


pytestmark = pytest.mark.anyio


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with asyncio.timeout(30), open_gateway() as opened:
        yield opened


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def ask(http: ClientSession, url: str, key: str = "", body: Any = BODY, **headers: str) -> tuple[int, Any]:
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    data = {"data": body} if isinstance(body, bytes) else {"json": body}
    async with http.post(f"{url}/chat/completions", headers=headers, **data) as answer:
        return answer.status, await answer.json()


async def test_only_a_sessions_own_key_opens_it_until_it_has_ended(gateway: Gateway, http: ClientSession) -> None:
    mine, theirs = session_with(ScriptedPolicy("a", "b")), session_with(ScriptedPolicy())
    async with gateway.admit(mine) as own, gateway.admit(theirs) as other:
        assert len({own.identifier, other.identifier, own.key, other.key}) == 4
        assert min(len(own.identifier), len(own.key)) >= 32
        assert (await ask(http, own.base_url))[0] == 401
        assert (await ask(http, own.base_url, "guess"))[0] == 404
        assert (await ask(http, other.base_url, own.key))[0] == 404
        assert (await ask(http, f"{gateway.address}/v1", own.key, **{"X-Session-ID": other.identifier}))[0] == 404
        assert (await ask(http, f"{gateway.address}/v1", own.key))[0] == 404
        assert (await ask(http, own.base_url, own.key))[0] == 200
    async with gateway.admit(mine, identifier="trace-1", key="shared"):  # a program that chooses its own
        assert (await ask(http, f"{gateway.address}/v1", "shared", **{"X-Session-ID": "trace-2"}))[0] == 404
        assert (await ask(http, f"{gateway.address}/v1", "shared", **{"X-Session-ID": "trace-1"}))[0] == 200
    status, answer = await ask(http, own.base_url, own.key)
    assert (status, answer["error"]["code"]) == (404, "no_session")
    assert gateway._open == {}
    assert (len(mine.turns), len(theirs.turns)) == (2, 0)


@pytest.mark.parametrize(("body", "expected"), [(b"[" * 1_000_000, 400), (b" " * (9 << 20), 413)])
async def test_what_cannot_be_read_is_the_programs_mistake(
    gateway: Gateway, http: ClientSession, body: bytes, expected: int
) -> None:
    async with gateway.admit(session_with(ScriptedPolicy("a"))) as access:
        status, answer = await ask(http, access.base_url, access.key, body)
        assert status == expected
        assert answer["error"]["type"] == "invalid_request_error"
        assert (await ask(http, access.base_url, access.key))[0] == 200  # the session is none the worse
        compressed = await ask(http, access.base_url, access.key, b"no gzip at all", **{"Content-Encoding": "gzip"})
        assert (compressed[0], compressed[1]["error"]["code"]) == (400, "encoding")


class Strict(PlainChat):
    def prompt(self, messages: Any, tools: Any) -> Any:
        raise UserError("Conversation roles must alternate")


async def test_messages_that_the_template_refuses_are_the_programs_mistake(
    gateway: Gateway, http: ClientSession
) -> None:
    session = session_with(ScriptedPolicy("a"))
    session.chat = Strict()
    async with gateway.admit(session) as access:
        other = {"messages": [{"role": "user", "content": "not the problem's prompt"}]}
        status, answer = await ask(http, access.base_url, access.key, other)
        assert status == 400
        assert "must alternate" in answer["error"]["message"]


class Broken(ScriptedPolicy):
    async def complete(self, prompt: tuple[int, ...], most: int) -> Completion:
        raise ServerError("the server has died")


async def test_the_engines_failure_ends_what_waits_for_the_program(gateway: Gateway, http: ClientSession) -> None:
    async with gateway.admit(session_with(Broken())) as access:

        async def program() -> None:
            assert (await ask(http, access.base_url, access.key))[0] == 503
            await asyncio.sleep(1000)

        with pytest.raises(ServerError, match="has died"):
            await access.unless_broken(program(), 60)


async def test_a_fault_of_ours_is_not_hidden_in_an_answer_to_a_program(gateway: Gateway, http: ClientSession) -> None:
    class Faulty(PlainChat):
        def extension(self, prompt: Any, completion: Any, new: Any, tools: Any) -> Any:
            raise KeyError("bug")

    session = session_with(ScriptedPolicy("a", "b"))
    session.chat = Faulty()
    async with gateway.admit(session) as access:
        await ask(http, access.base_url, access.key)
        answer = {"role": "assistant", "content": "a"}
        longer = {"messages": [*BODY["messages"], answer, {"role": "user", "content": "on"}]}
        with pytest.raises(KeyError):
            await access.unless_broken(ask(http, access.base_url, access.key, longer), 60)


async def test_what_is_still_asked_for_when_a_session_ends_is_not_waited_for(
    gateway: Gateway, http: ClientSession
) -> None:
    class Slow(ScriptedPolicy):
        async def complete(self, prompt: tuple[int, ...], most: int) -> Completion:
            started.set()
            await asyncio.sleep(1000)
            raise AssertionError

    started = asyncio.Event()
    session = session_with(Slow())
    async with gateway.admit(session) as access:
        asking = asyncio.create_task(ask(http, access.base_url, access.key))
        await started.wait()
    assert (await asking)[0] == 404
    assert session.turns == []


async def test_the_time_in_which_the_policy_is_asked_is_not_the_programs(gateway: Gateway, http: ClientSession) -> None:
    class Slow(ScriptedPolicy):
        async def complete(self, prompt: tuple[int, ...], most: int) -> Completion:
            await asyncio.sleep(1.5)
            return await super().complete(prompt, most)

    async with gateway.admit(session_with(Slow("a", "b"))) as access:
        assert (await access.unless_broken(ask(http, access.base_url, access.key), 1.2))[0] == 200
        with pytest.raises(TimeoutError):
            await access.unless_broken(asyncio.sleep(1000), 0.4)


async def test_a_body_is_read_outside_of_the_event_loop(
    gateway: Gateway, http: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request is answered while one body is still being read."""
    reading, others_served = threading.Event(), threading.Event()

    def read_slowly(data: bytes, *, again: bool) -> Any:
        if b"long" in data:
            reading.set()
            assert others_served.wait(20), "the loop was held"
        return read_request(data, again=again)

    monkeypatch.setattr(server, "read_request", read_slowly)
    async with gateway.admit(session_with(ScriptedPolicy("a", "b"))) as access:
        long = asyncio.create_task(ask(http, access.base_url, access.key, BODY | {"model": "long"}))
        assert await asyncio.to_thread(reading.wait, 20)
        assert (await ask(http, access.base_url, access.key))[0] == 200
        others_served.set()
        assert (await long)[0] == 200


async def _connected(gateway: Gateway, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = gateway.address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    return reader, writer


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nX: ", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"]
)
async def test_a_connection_without_a_key_is_closed_in_time(
    gateway: Gateway, http: ClientSession, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(strangers, "STRANGER_SECONDS", 0.2)
    reader, writer = await _connected(gateway, sent)
    await asyncio.wait_for(reader.read(), 5)
    writer.close()
    async with gateway.admit(session_with(ScriptedPolicy("a", "b"))) as access:
        assert (await ask(http, access.base_url, access.key))[0] == 200
        await asyncio.sleep(0.4)
        assert len(gateway._strangers._timers) == 0
        assert (await ask(http, access.base_url, access.key))[0] == 200


async def test_connections_without_a_key_are_bounded_and_programs_still_answered(
    gateway: Gateway, http: ClientSession
) -> None:
    open_files = len(os.listdir("/proc/self/fd"))
    connections = (_connected(gateway, b"POST / HTTP/1.1\r\n") for _ in range(strangers.MOST_STRANGERS + 50))
    connected = await asyncio.gather(*connections)
    async with gateway.admit(session_with(ScriptedPolicy("a"))) as access:
        assert (await ask(http, access.base_url, access.key))[0] == 200
    others = 20  # the process has files of its own; without a bound there would be 50 strangers more
    assert len(os.listdir("/proc/self/fd")) - open_files <= len(connected) + strangers.MOST_STRANGERS + others
    for _, writer in connected:
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        "GET /v1/models HTTP/1.1\r\nAuthorization Bearer KEY\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\nAuthorization: Bearer KEY\x00\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: x\r\n Authorization : Bearer KEY\r\n\r\n",
        "GET /KEY/v1/models HTTP/KEY\r\n\r\n",
        "KEY\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\nKEY KEY KEY\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer KEY\r\nContent-Length: KEY\r\n\r\n",
        "POST /BASE/chat/completions HTTP/1.1\r\nAuthorization: Bearer KEY\r\nTransfer-Encoding: chunked\r\n\r\nKEY\r\n",
    ],
)
async def test_no_key_of_a_malformed_request_gets_into_the_log(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, sent: str
) -> None:
    caplog.set_level("DEBUG")
    async with gateway.admit(session_with(ScriptedPolicy())) as access:
        reader, writer = await _connected(
            gateway,
            sent.replace("KEY", access.key).replace("/BASE", access.base_url.removeprefix(gateway.address)).encode(),
        )
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
        assert access.key not in caplog.text


async def test_a_conversation_that_is_far_too_long_is_refused_before_the_event_loop_renders_it(
    gateway: Gateway, http: ClientSession
) -> None:
    class Counting(PlainChat):
        def prompt(self, messages: Any, tools: Any) -> Any:
            rendered.append(messages)
            return super().prompt(messages, tools)

    rendered: list[Any] = []
    long = "x" * (7 << 20)
    function = {"name": "f", "description": long, "parameters": {}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": long})}}
    bodies: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": long}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * (1 << 20)}] * 7}]},
        {"messages": [{"role": "user", "content": "1"}], "tools": [{"type": "function", "function": function}]},
        {"messages": [{"role": "assistant", "tool_calls": [call]}]},
    ]
    session = session_with(ScriptedPolicy("a"))
    session.chat = Counting()
    async with gateway.admit(session) as access:
        for body in bodies:
            status, answer = await ask(http, access.base_url, access.key, body)
            assert (status, answer["error"]["code"]) == (400, "max_tokens")
    assert rendered == []


def _half_a_request(access: server.Access) -> tuple[bytes, bytes]:
    """A request with the session's key, without the end of its body; and that end."""
    path, body = access.base_url.removeprefix("http://").partition("/")[2], json.dumps(BODY).encode()
    head = f"POST /{path}/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {access.key}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:9], body[9:]


async def test_a_request_that_arrives_in_full_after_the_end_of_its_session_is_not_answered(gateway: Gateway) -> None:
    policy = ScriptedPolicy("a")
    async with gateway.admit(session_with(policy)) as access:
        begin, end = _half_a_request(access)
        reader, writer = await _connected(gateway, begin)
        await _until_welcome(gateway)
    writer.write(end)
    assert (await reader.readline()).split()[1] == b"404"
    assert policy.asked == []
    writer.close()


async def test_connections_of_a_session_are_closed_in_time_after_its_end(
    gateway: Gateway, http: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "STRANGER_SECONDS", 0.2)
    async with gateway.admit(session_with(ScriptedPolicy("a", "b"))) as access:
        async with gateway.admit(session_with(ScriptedPolicy())) as other:
            reader, writer = await _connected(gateway, _half_a_request(other)[0])
            await _until_welcome(gateway)
            assert (await ask(http, other.base_url, access.key))[0] == 404
            assert (await ask(http, access.base_url, access.key))[0] == 200
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
        await asyncio.sleep(0.4)
        assert len(gateway._guests) == 1  # that of the session that is open
        assert (await ask(http, access.base_url, access.key))[0] == 200


async def _until_welcome(gateway: Gateway) -> None:
    while not gateway._guests:
        await asyncio.sleep(0.01)
