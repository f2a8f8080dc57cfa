"""Recorded results: what was handed out before a kill is handed out again, and nothing else is."""

import asyncio
import json
import resource
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.tools.calls import context

from dagrpo.core.errors import UserError
from dagrpo.rollout.tool_runtime.recorded_tool import RecordedTool, TimedTool
from dagrpo.tools import CallContext, InfrastructureFailure, StatelessTool, ToolFailure, ToolTimeout


class Clock(StatelessTool):
    """A tool that never says the same twice."""

    def __init__(self, first: int = 0) -> None:
        self.calls = first
        self.forgotten: list[str] = []
        self.down = False

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        await asyncio.sleep(0)
        if self.down:
            raise InfrastructureFailure("the line is dead")
        if function == "fail":
            self.calls += 1
            raise ToolFailure(f"no {self.calls}")
        self.calls += 1
        return f"tick {self.calls}"

    async def forget(self, trajectory: str) -> None:
        self.forgotten.append(trajectory)


async def _asks(tool: RecordedTool, *calls: tuple[str, str, dict[str, Any]]) -> list[str]:
    """What the tool says to (attempt, function, arguments), at the same time."""

    async def one(trajectory: str, function: str, arguments: dict[str, Any]) -> str:
        try:
            return await tool.call(function, arguments, context(trajectory=trajectory))
        except ToolFailure as failure:
            return f"failure: {failure}"

    return await asyncio.gather(*(one(*call) for call in calls))


def _results(clock: Clock, path: Path, *calls: tuple[str, str, dict[str, Any]]) -> list[str]:
    with RecordedTool(clock, path, stateless=True) as tool:
        return asyncio.run(_asks(tool, *calls))


CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("one", "now", {}),
    ("one", "now", {}),
    ("two", "now", {}),
    ("one", "now", {"place": "\ud800 \u00e9"}),
    ("one", "fail", {}),
]


def test_every_call_is_told_after_a_kill_what_it_was_told_before(tmp_path: Path) -> None:
    path = tmp_path / "tools/clock.jsonl"
    before = _results(Clock(), path, *CALLS)
    assert before == ["tick 1", "tick 2", "tick 3", "tick 4", "failure: no 5"]
    after = Clock(first=100)
    assert _results(after, path, *reversed(CALLS))[::-1] == [before[1], before[0], *before[2:]]
    assert after.calls == 100
    assert _results(after, path, *CALLS, ("one", "now", {}))[-1] == "tick 101"


def test_a_call_that_broke_is_not_recorded_and_an_attempt_that_is_made_again_is_told_the_same(tmp_path: Path) -> None:
    path, clock = tmp_path / "clock.jsonl", Clock()

    async def ask() -> list[str]:
        with RecordedTool(clock, path, stateless=True) as tool:
            clock.down = True
            with pytest.raises(InfrastructureFailure):
                await tool.call("now", {}, context())
            clock.down = False
            first = await _asks(tool, CALLS[0])
            assert json.loads(path.read_text())["result"] == first[0], "it is in the file before it is handed out"
            await tool.forget("one")
            return first + await _asks(tool, CALLS[0])

    assert asyncio.run(ask()) == ["tick 1", "tick 1"]
    assert clock.forgotten == ["one"]
    assert _results(Clock(first=100), path, CALLS[0]) == ["tick 1"]


@pytest.mark.parametrize("lost", [1, 10])
def test_a_line_that_a_kill_cut_off_is_made_again(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "clock.jsonl"
    _results(Clock(), path, *CALLS[:3])
    path.write_bytes(path.read_bytes()[:-lost])
    assert _results(Clock(first=100), path, *CALLS[:3]) == ["tick 1", "tick 2", "tick 101"]
    assert _results(Clock(first=200), path, *CALLS[:3]) == ["tick 1", "tick 2", "tick 101"]


@pytest.mark.parametrize("place", range(3, 400, 61))
def test_a_flipped_bit_has_only_the_calls_of_its_lines_made_again(
    tmp_path: Path, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "clock.jsonl"
    before = _results(Clock(), path, *CALLS)
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    after = _results(Clock(first=100), path, *CALLS)
    assert all(now == then or "10" in now for now, then in zip(after, before, strict=True))
    made_again = sum(now != then for now, then in zip(after, before, strict=True))
    assert 1 <= made_again <= 2
    assert "clock.jsonl: " in capsys.readouterr().err
    assert _results(Clock(first=200), path, *CALLS) == after


def test_a_full_disk_is_told_in_a_sentence_and_nothing_broken_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "clock.jsonl"
    _results(Clock(), path, *CALLS[:2])
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
    try:
        with pytest.raises(UserError, match=r"clock\.jsonl cannot be written \(File too large\)"):
            _results(Clock(), path, *CALLS[:3])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert _results(Clock(first=100), path, *CALLS[:3]) == ["tick 1", "tick 2", "tick 101"]


class Memory:
    """A tool that keeps what each attempt said."""

    def __init__(self) -> None:
        self.said: dict[str, list[str]] = {}

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        await asyncio.sleep(0)
        said = self.said.setdefault(context.trajectory, [])
        said.append(arguments["word"])
        if arguments["word"] == "fail":
            raise ToolFailure("no")
        return " ".join(said)

    async def forget(self, trajectory: str) -> None:
        self.said.pop(trajectory, None)


def test_a_tool_that_keeps_something_is_brought_to_where_it_was_before_the_kill(tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"

    async def ask(*words: str) -> list[str]:
        with RecordedTool(Memory(), path, stateless=False) as tool:
            told = []
            for word in words:
                try:
                    told.append(await tool.call("say", {"word": word}, context(trajectory="one")))
                except ToolFailure as failure:
                    told.append(str(failure))
            return told

    asyncio.run(ask("a", "fail", "b"))
    assert asyncio.run(ask("a", "fail", "b", "c", "d")) == ["a", "no", "a fail b", "a fail b c", "a fail b c d"]


class Slow(StatelessTool):
    """A tool that answers late the first time, and in time when asked again."""

    def __init__(self) -> None:
        self.calls = 0

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        self.calls += 1
        await asyncio.sleep(60 if self.calls == 1 else 0)
        return "in time"


def test_a_call_that_was_late_is_late_again_after_a_kill(tmp_path: Path) -> None:
    slow = Slow()
    for _ in range(2):
        recorded = RecordedTool(TimedTool(slow, 0.05), tmp_path / "slow.jsonl", stateless=True)
        with recorded as tool, pytest.raises(ToolTimeout, match=r"now gave no result within 0.05 seconds\."):
            asyncio.run(tool.call("now", {}, context()))
    assert slow.calls == 1


class Impatient(StatelessTool):
    """A tool whose own deadline passes."""

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        raise TimeoutError("the index does not answer")


def test_a_deadline_of_the_tools_own_is_no_failure_of_the_policys() -> None:
    with pytest.raises(InfrastructureFailure, match="the index does not answer"):
        asyncio.run(TimedTool(Impatient(), 60).call("now", {}, context()))
