"""The tools of an MCP server: described by it, answered by it, and there again after it dies."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.tools.calls import context

from dagrpo.core.errors import UserError
from dagrpo.tools import InfrastructureFailure, OpenTool, ToolFailure, ToolPlace
from dagrpo.tools.mcp import TOOL, Config

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
def test_one_server_answers_all_and_is_started_again_when_it_dies(tmp_path: Path) -> None:
    config = Config(command=SERVER, environment=["OF_THE_SERVER", "OF_NO_USE"])

    async def ask() -> None:
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

    asyncio.run(ask())
    assert "I am leaving" in (tmp_path / "mcp.log").read_text()
    mine = psutil.Process(os.getpid()).children(recursive=True)
    assert [child for child in mine if SERVER[1] in child.cmdline()] == []


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (Config(), r"names no server, or two: set rollout\.tools\.mcp\.command or rollout\.tools\.mcp\.url"),
        (Config(command=["a"], url="http://127.0.0.1:9"), "names no server, or two"),
        (Config(command=["/nowhere/server"]), "/nowhere/server cannot be reached: FileNotFoundError"),
        (Config(command=["sh", "-c", "echo no luck >&2; exit 3"]), "It said: no luck. Start the server by hand"),
        (Config(command=["sleep", "60"], seconds=0.3), "sleep 60 cannot be reached: TimeoutError"),
        pytest.param(Config(command=["yes"], seconds=0.3), "yes cannot be reached", marks=pytest.mark.nightly),
        (Config(url="http://127.0.0.1:9/mcp"), "http://127.0.0.1:9/mcp cannot be reached: ConnectError"),
    ],
)
def test_a_server_that_cannot_be_asked_is_named(config: Config, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        TOOL.functions(config)


def test_results_are_recorded() -> None:
    assert not TOOL.repeatable(Config(command=SERVER))
