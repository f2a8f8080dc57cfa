"""The tools of an MCP server: described by it, answered by it, and there again after it dies."""

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hostile import anything
from tests.tools.calls import context

from dagrpo.core.errors import UserError
from dagrpo.tools import InfrastructureFailure, OpenTool, ToolFailure, ToolPlace
from dagrpo_agents import mcp_tool
from dagrpo_agents.mcp_tool import TOOL, Config

SERVER = [sys.executable, str(Path(__file__).with_name("stdio_server.py"))]


@pytest.fixture
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_SERVER", "told")
    monkeypatch.setenv("OF_NOBODY", "secret")


async def _told(tool: OpenTool, function: str, **arguments: Any) -> str:
    try:
        return await tool.call(function, arguments, context())
    except (ToolFailure, InfrastructureFailure) as failure:
        return f"{type(failure).__name__}: {failure}"


@pytest.mark.nightly
def test_a_server_says_what_it_offers_from_within_a_loop_too() -> None:
    async def ask() -> list[str]:
        return [function.name for function in TOOL.functions(Config(command=SERVER, functions=["add", "fail"]))]

    assert asyncio.run(ask()) == ["add", "fail"]
    (add, *_) = TOOL.functions(Config(command=SERVER))
    assert (add.name, add.description, add.parameters["required"]) == ("add", "Add two numbers.", ["a", "b"])
    with pytest.raises(UserError, match=r"functions names subtract: the server has add, count, fail, die"):
        TOOL.functions(Config(command=SERVER, functions=["subtract"]))


@pytest.mark.nightly
@pytest.mark.usefixtures("_secrets")
@pytest.mark.anyio
async def test_one_server_answers_all_and_is_started_again_when_it_dies(tmp_path: Path) -> None:
    config = Config(command=SERVER, environment=["OF_THE_SERVER", "OF_NO_USE"])
    async with TOOL.open(config, ToolPlace(folder=tmp_path, passages=None)) as tool:
        assert await asyncio.gather(*(_told(tool, "add", a=n, b=1) for n in range(8))) == list("12345678")
        assert [await _told(tool, "count"), await _told(tool, "count")] == ["1", "2"]
        assert await _told(tool, "fail") == "ToolFailure: Error executing tool fail"
        assert "ToolFailure: Error executing tool add: 1 validation error" in await _told(tool, "add", a="x", b=1)
        assert await _told(tool, "variable", name="OF_THE_SERVER") == "told"
        assert await _told(tool, "variable", name="OF_NOBODY") == "not set"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_told(tool, "sleep", seconds=0.5), 0.1)
        assert (await _told(tool, "die")).endswith("stdio_server.py died in a call of die.")
        assert await _told(tool, "count") == "1"  # of the new one
        await tool.forget("one")
    assert "I am leaving" in (tmp_path / "mcp.log").read_text()
    mine = psutil.Process(os.getpid()).children(recursive=True)
    assert [child for child in mine if SERVER[1] in child.as_dict(["cmdline"], ad_value=[])["cmdline"]] == []


BARE = """
import json, sys
SCHEMA = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}
for line in sys.stdin:
    asked = json.loads(line)
    number, method = asked.get("id"), asked["method"]
    if method == "initialize":
        about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "a", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": number, "result": about}), flush=True)
    elif method == "tools/call":
        print(asked["params"]["arguments"]["line"].replace("NUMBER", str(number)), flush=True)
    elif method == "tools/list":
        tool = {"name": "say", "inputSchema": {"type": "object"}, "outputSchema": SCHEMA}
        print(json.dumps({"jsonrpc": "2.0", "id": number, "result": {"tools": [tool]}}), flush=True)
    elif number is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "?"}}), flush=True)
"""


def _answers(folder: Path, *lines: str) -> list[str]:
    """What the policy is told where a server answers its calls with these lines."""

    async def ask() -> list[str]:
        config = Config(command=[sys.executable, "-c", BARE])
        async with TOOL.open(config, ToolPlace(folder=folder, passages=None)) as tool:
            return [await asyncio.wait_for(_told(tool, "say", line=line), 30) for line in lines]

    return asyncio.run(ask())


def _result(result: str) -> str:
    return f'{{"jsonrpc": "2.0", "id": NUMBER, "result": {result}}}'


FINE = _result('{"content": [{"type": "text", "text": "fine"}]}')


@pytest.mark.anyio
async def test_a_program_that_writes_much_to_stderr_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_tool, "MOST_LOG_BYTES", 10_000)
    monkeypatch.setattr(mcp_tool, "SECONDS_BETWEEN_LOOKS", 0.02)
    chatty = BARE.replace("asked = json", 'print("x" * 50_000, file=sys.stderr, flush=True)\n    asked = json')
    async with TOOL.open(
        Config(command=[sys.executable, "-c", chatty]), ToolPlace(folder=tmp_path, passages=None)
    ) as tool:
        for _ in range(3):
            assert await _told(tool, "say", line=FINE) == "fine"
            await asyncio.sleep(0.2)
            assert (tmp_path / "mcp.log").stat().st_size <= 10_000


def test_a_line_that_is_too_long_is_an_error_of_the_call_and_the_next_call_has_a_new_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagrpo_agents.mcp_transport.MOST_BYTES", 1 << 20)
    first, second = _answers(tmp_path, "x" * (2 << 20), FINE)
    assert first.startswith("InfrastructureFailure"), first
    assert first.endswith(" answered with more than 1048576 bytes in a call of say."), first[-200:]
    assert second == "fine"


@pytest.mark.parametrize(
    "result",
    [
        '{"content": [], "structuredContent": {"a": ' + "[" * 5000 + "]" * 5000 + "}}",
        '{"content": [], "structuredContent": {"a": [' + "[]," * 1_000_000 + "0]}}",
        '{"content": [' + '{"type": "text", "text": ""},' * 100_000 + '{"type": "text", "text": ""}]}',
        '{"content": [], "structuredContent": {"a": 1' + "0" * 5000 + "}}",
        '{"content": [], "content": [{"type": "text", "text": "b"}]}',
        '{"content": [{"type": "text", "text": "\\ud800"}]}',
        '{"content": [}',
    ],
    ids=lambda result: result[:50],
)
def test_an_answer_that_cannot_be_read_is_an_error_at_once_and_the_next_call_is_answered(
    tmp_path: Path, result: str
) -> None:
    first, second = _answers(tmp_path, _result(result), FINE)
    assert first.startswith("InfrastructureFailure")
    assert "answered with a line that is no message of the protocol" in first
    assert second == "fine"


PAGED = BARE.replace('"result": {"tools": [tool]}', '"result": page(asked)').replace(
    "for line in sys.stdin:",
    """def page(asked):
    number = int((asked.get("params") or {}).get("cursor") or 0)
    tools = [{"name": f"say_{number}", "inputSchema": {"type": "object"}}]
    return {"tools": tools} | ({"nextCursor": str(number + 1)} if number + 1 < PAGES else {})
for line in sys.stdin:""",
)


def test_the_tools_of_all_pages_are_offered_and_a_list_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tool, "MOST_TOOLS", 100)
    config = Config(command=[sys.executable, "-c", PAGED.replace("PAGES", "3")])
    assert [function.name for function in TOOL.functions(config)] == ["say_0", "say_1", "say_2"]
    with pytest.raises(UserError, match="does not say what it offers"):
        TOOL.functions(Config(command=[sys.executable, "-c", PAGED.replace("PAGES", "1_000_000_000")]))


def test_a_result_is_not_matched_with_the_servers_own_patterns(tmp_path: Path) -> None:
    """One of them would take years, and nothing else would run."""
    text = "a" * 60 + "!"
    log = '{"level": "info"}\n[INFO] called\n'
    answers = _answers(tmp_path, log + _result(f'{{"content": [], "structuredContent": {{"a": "{text}"}}}}'))
    assert answers == [f'{{"a": "{text}"}}']


@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(anything.map(json.dumps), min_size=10, max_size=10))
def test_any_result_is_a_text_or_a_failure(tmp_path: Path, results: list[str]) -> None:
    parts = [f'{{"content": [{{"type": "text", "text": {result}}}], "isError": {result}}}' for result in results]
    for told in _answers(tmp_path, *map(_result, [*results, *parts])):
        told.encode()


def test_a_body_without_end_is_an_error_of_the_call(tmp_path: Path) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        asked = await request.json() if request.method == "POST" else {}
        if asked.get("method") == "tools/call":
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            with suppress(ConnectionError):
                while True:
                    await response.write(b" " * (1 << 16))
            return response
        if asked.get("method") != "initialize":
            return web.json_response(
                {"jsonrpc": "2.0", "id": asked.get("id"), "error": {"code": -32601, "message": "?"}}
            )
        information = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "a", "version": "1"}}
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": information})

    async def ask() -> None:
        application = web.Application()
        application.router.add_route("*", "/mcp", endless)
        async with TestServer(application) as server:
            config = Config(url=str(server.make_url("/mcp")))
            async with TOOL.open(config, ToolPlace(folder=tmp_path, passages=None)) as tool:
                failure = await asyncio.wait_for(_told(tool, "flood"), 30)
                assert failure.endswith("answered with more than 8388608 bytes"), failure

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (Config(), r"names no server, or two: set rollout\.tools\.mcp\.command or rollout\.tools\.mcp\.url"),
        (Config(command=["a"], url="http://127.0.0.1:9"), "names no server, or two"),
        (Config(command=["/nowhere/server"]), "/nowhere/server cannot be reached: FileNotFoundError"),
        (Config(command=["sh", "-c", "echo no luck >&2; exit 3"]), "It said: no luck. Start the server by hand"),
        (Config(command=["sleep", "60"], seconds=0.3), "sleep 60 cannot be reached: TimeoutError"),
        (Config(command=["cat", "/dev/zero"]), "cat /dev/zero cannot be reached: MCPError"),  # a line without end
        pytest.param(Config(command=["yes"], seconds=0.3), "yes cannot be reached", marks=pytest.mark.nightly),
        (Config(url="http://127.0.0.1:9/mcp"), "http://127.0.0.1:9/mcp cannot be reached: ConnectError"),
    ],
)
def test_a_server_that_cannot_be_asked_is_named(config: Config, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        TOOL.functions(config)
