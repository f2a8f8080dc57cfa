"""What the policy is told of its programs, and what is no fault of theirs."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from packages.dagrpo_sandbox.tests.running import without_sandbox
from tests.tools.calls import NOWHERE, called, context

from dagrpo.core.errors import UserError
from dagrpo.tools import TOOLS, InfrastructureFailure, OpenTool, ToolFailure
from dagrpo.tools.code_interpreter import Config
from dagrpo_sandbox import SandboxUnavailable, bubblewrap

TOOL = TOOLS.get("code_interpreter")


@pytest.fixture(scope="module", autouse=True)
def _bubblewrap() -> None:
    try:
        bubblewrap.find_installation()
    except SandboxUnavailable as error:
        without_sandbox(error)


def _run(code: str, config: Config | None = None) -> str:
    return called("code_interpreter", config, code=code)


def _fails(code: str, config: Config | None = None) -> str:
    with pytest.raises(ToolFailure) as failure:
        _run(code, config)
    return str(failure.value)


def _use(config: Config, use: Callable[[OpenTool], Awaitable[None]]) -> None:
    async def opened() -> None:
        async with TOOL.open(config, NOWHERE) as tool:
            await use(tool)

    asyncio.run(opened())


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print(sum(range(101)))", "5050\n"),
        ("6 * 7", "[The program printed nothing.]"),
        ("print('ü' * 200, end='')", "ü" * 100 + "\n[Only the first 100 characters are shown.]"),
    ],
)
def test_a_program_is_answered_with_what_it_prints(code: str, told: str) -> None:
    assert _run(code, Config(max_output_characters=100)) == told


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("while True: pass", "it ran for more than 0.5 seconds"),
        ("while True: print('x')", "it printed more than 100 characters"),
        ("import os; os.kill(os.getpid(), 9)", "ended by a signal"),
        ("raise SystemExit(1)", "ended with an error and printed nothing"),
        ("print(1)\nprint(x)", "1\nTraceback"),
    ],
)
def test_a_program_that_fails_or_is_stopped_is_told_why(code: str, why: str) -> None:
    assert why in _fails(code, Config(seconds=0.5, max_output_characters=100))


def test_a_session_belongs_to_one_attempt_until_it_is_over_or_lost() -> None:
    async def use(tool: OpenTool) -> None:
        for trajectory in ("one", "other"):
            await tool.call("code_interpreter", {"code": f"x = {trajectory!r}"}, context(trajectory=trajectory))
        told = await tool.call("code_interpreter", {"code": "print(x)"}, context(trajectory="one"))
        assert told == "one\n"
        await tool.forget("one")
        with pytest.raises(ToolFailure, match="NameError"):
            await tool.call("code_interpreter", {"code": "print(x)"}, context(trajectory="one"))
        assert await tool.call("code_interpreter", {"code": "print(x)"}, context(trajectory="other")) == "other\n"
        with pytest.raises(ToolFailure, match=r"Variables of earlier calls are lost\.\]$"):
            await tool.call("code_interpreter", {"code": "while True: pass"}, context(trajectory="other"))

    _use(Config(mode="session", parallel=2, seconds=1.0), use)
    _use(Config(), _share_nothing)


async def _share_nothing(tool: OpenTool) -> None:
    await tool.call("code_interpreter", {"code": "x = 5"}, context())
    with pytest.raises(ToolFailure, match="NameError"):
        await tool.call("code_interpreter", {"code": "print(x)"}, context())


def test_a_session_that_is_given_up_for_others_is_told_to_the_policy() -> None:
    async def use(tool: OpenTool) -> None:
        for number in range(3):
            code = {"code": "block = b'x' * (40 << 20)"}
            await tool.call("code_interpreter", code, context(trajectory=str(number)))
        with pytest.raises(
            ToolFailure, match=r"all sessions together held too much memory.*Variables of earlier calls are lost"
        ):
            await tool.call("code_interpreter", {"code": "1"}, context(trajectory="0"))

    _use(Config(mode="session", memory_mb=80, sessions_memory_mb=100, parallel=1), use)


def test_sessions_may_hold_as_much_as_one_program() -> None:
    with pytest.raises(ValueError, match="sessions_memory_mb is below memory_mb"):
        Config(mode="session", memory_mb=8192)
    Config(memory_mb=8192)


def test_sandboxes_that_no_longer_start_are_no_fault_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(tool: OpenTool) -> None:
        monkeypatch.setattr(bubblewrap, "INSTALL", "")
        monkeypatch.setattr("dagrpo_sandbox.sandbox.command", lambda *given, **names: ["/nonexistent/bwrap"])
        with pytest.raises(ToolFailure):
            await tool.call("code_interpreter", {"code": "open('/tmp/x', 'w'); 1 / 0"}, context())  # it is replaced
        with pytest.raises(InfrastructureFailure, match="bubblewrap cannot isolate"):
            await tool.call("code_interpreter", {"code": "print(1)"}, context())

    _use(Config(parallel=1), use)


def test_without_bubblewrap_the_tool_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bubblewrap, "_candidates", list)
    with pytest.raises(UserError, match="apt install bubblewrap"):
        _run("print(1)")
