"""From problems to trajectories in both orders of work, with an engine that follows a script; agents are closed."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.problems import problem
from tests.rollout.scripted_chat import ScriptedChat
from tests.rollout.scripted_engine import ScriptedEngine
from tests.rollout.single_turns import single_turns
from tests.rollout.talking import Echo, TalkingEngine, attempts, tool_problem

from dagrpo.core.trajectory import Trajectory
from dagrpo.core.types import Completion, PictureTokens, PromptPictures, SamplingRequest
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rollout import open_agent as module
from dagrpo.rollout.agents import Agent, AgentContext, AgentKind, Limits
from dagrpo.rollout.agents.tool_agent import Config, ToolAgent
from dagrpo.rollout.collect import FailedPrograms, collect
from dagrpo.rollout.open_agent import AgentEnv, OpenAgent, open_agent
from dagrpo.rollout.sampling import Sampling
from dagrpo.rollout.tool_runtime.toolbox import Toolbox
from dagrpo.tools import CallContext

PROBLEMS = [problem(0), problem(1), problem(1)]  # a step that spans two epochs may draw a problem twice
TOKENIZER = character_tokenizer(256)
SAMPLING = Sampling(samples=2, greedy=True, temperature=0.7, top_p=0.9, top_k=8, max_new_tokens=4, lockstep=True)


@pytest.fixture(scope="module")
def agent() -> Iterator[OpenAgent]:
    with single_turns(TOKENIZER) as opened:
        yield opened


def seed_of(position: int, sample_index: int) -> int:
    return 100 * position + sample_index + 1


@pytest.mark.parametrize("lockstep", [True, False])
def test_the_attempts_at_a_problem_are_side_by_side_each_with_its_seed(agent: OpenAgent, lockstep: bool) -> None:
    engine = ScriptedEngine()
    sampling = replace(SAMPLING, lockstep=lockstep)
    trajectories = collect(PROBLEMS, sampling, seed_of, engine=engine, agent=agent)
    assert [(t.prompt.index, t.sample_index) for t in trajectories] == [(p, s) for p in (0, 1, 1) for s in (-1, 0, 1)]
    assert [t.sampling_seed for t in trajectories] == [0, 1, 2, 100, 101, 102, 200, 201, 202]
    for trajectory in trajectories:
        (sample,) = trajectory.samples
        prompt = trajectory.prompt.token_ids
        assert tuple(sample.token_ids) == (*prompt, trajectory.sampling_seed % 10, prompt[-1])
        assert tuple(sample.loss_mask) == (False, False, True, True)
        assert tuple(sample.logprobs) == (0.0, 0.0, -0.5, -0.25)
        assert sample.weight_version == "v"
        assert trajectory.text == TOKENIZER.decode(list(sample.completion_ids), skip_special_tokens=True)
        assert trajectory.tokens == 2


def test_a_lockstep_batch_holds_all_attempts_or_as_many_as_it_may(agent: OpenAgent) -> None:
    engine, told = ScriptedEngine(), list[int]()
    for size in (None, 4):
        sampling = replace(SAMPLING, batch_size=size)
        collect(PROBLEMS, sampling, seed_of, engine=engine, agent=agent, on_batch=lambda t: told.append(len(t)))
    assert [len(batch) for batch in engine.batches] == told == [9, 4, 4, 1]
    assert [request.seed for request in engine.batches[0]] == [0, 1, 2, 100, 101, 102, 200, 201, 202]
    greedy, sampled, *_ = engine.batches[0]
    assert (greedy.temperature, greedy.top_p, greedy.top_k) == (0.0, 1.0, -1)
    assert (sampled.temperature, sampled.top_p, sampled.top_k, sampled.max_new_tokens) == (0.7, 0.9, 8, 4)


@pytest.mark.parametrize("lockstep", [True, False])
def test_every_request_has_the_pictures_of_its_problem(agent: OpenAgent, lockstep: bool) -> None:
    tokens = PictureTokens(image=200, video=201, start=202, end=203)
    shown = [replace(problem(i), pictures=PromptPictures(files=(b"%d" % i,), tokens=tokens)) for i in range(2)]
    trajectories = collect(
        [*shown, problem(2)],
        replace(SAMPLING, lockstep=lockstep),
        seed_of,
        engine=(engine := ScriptedEngine()),
        agent=agent,
    )
    asked = engine.batches[0] if lockstep else engine.requests
    files = {request.input_ids: request.pictures.files if request.pictures else None for request in asked}
    assert files == {(5, 10): (b"0",), (5, 11): (b"1",), (5, 12): None}
    assert len(trajectories) == len(asked) == 9


def test_free_running_keeps_a_problem_in_one_session_and_no_more_in_flight_than_it_may(
    agent: OpenAgent,
) -> None:
    engine = ScriptedEngine()
    sampling = replace(SAMPLING, lockstep=False, batch_size=3)
    collect(PROBLEMS, sampling, seed_of, engine=engine, agent=agent)
    assert engine.sessions == ["0"] * 3 + ["1"] * 3 + ["2"] * 3
    assert engine.most_in_flight == 3


class _InterruptedEngine(ScriptedEngine):
    """Ctrl-C is pressed while it samples."""

    def generate(self, requests: Sequence[SamplingRequest], **waves: Any) -> list[Completion]:
        signal.raise_signal(signal.SIGINT)
        return super().generate(requests, **waves)


def test_ctrl_c_while_the_engine_samples_is_raised_as_what_it_is(agent: OpenAgent) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores Ctrl-C
    try:
        with pytest.raises(KeyboardInterrupt):
            collect(PROBLEMS, SAMPLING, seed_of, engine=_InterruptedEngine(), agent=agent)
    finally:
        signal.signal(signal.SIGINT, before)


# ---- failed programs ----
def _attempt(fault: str = "") -> Trajectory:
    return Trajectory(
        prompt=problem(0),
        sample_index=0,
        sampling_seed=1,
        samples=(),
        text="",
        finish_reason="stop",
        stop_reason="program_failed" if fault else "answered",
        fault=fault,
    )


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_it_is_said_once_with_the_most_frequent_fault_and_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/program.log").touch()
    watched = FailedPrograms(tmp_path / "agent")
    watched.warn("train (seed 1), step 1", [_attempt()] * 3)
    assert _lines(capsys) == []
    attempts = [_attempt("rare"), *[_attempt("RuntimeError: dead at\x1b[2J problem 672")] * 2, _attempt()]
    watched.warn("train (seed 1), step 2", attempts)
    assert _lines(capsys) == [
        "train (seed 1), step 2: 3 of 4 attempts ended with program_failed, such as: RuntimeError: dead at\\u001b[2J "
        "problem 672 (agent/program.log)"
    ]
    watched.warn("train (seed 1), step 3", attempts)
    assert _lines(capsys) == []


@dataclass
class Conversation:
    agent: Config
    tools: Mapping[str, Any]
    chat: None = None


@pytest.mark.parametrize("lockstep", [True, False])
def test_ctrl_c_within_a_call_leaves_no_task_and_no_open_tool(monkeypatch: pytest.MonkeyPatch, lockstep: bool) -> None:
    seen: list[str] = []

    async def call(arguments: Mapping[str, Any], context: CallContext) -> str:
        try:
            await asyncio.sleep(0.01)
            if "struck" not in seen:
                seen.append("struck")
                raise KeyboardInterrupt
            await asyncio.sleep(60)
            return ""
        finally:
            seen.append("call over")

    @asynccontextmanager
    async def opened(limits: Limits, context: AgentContext) -> AsyncIterator[Agent]:
        try:
            yield ToolAgent(Toolbox({"echo": Echo(call)}, limits), limits)
        finally:
            await asyncio.sleep(0)
            seen.append("closed")

    monkeypatch.setattr(module, "AGENTS", {"tool_agent": AgentKind(config=Config, open=opened)})
    monkeypatch.setattr(module, "chat_format", lambda tokenizer, config: ScriptedChat())
    conversation: Any = Conversation(agent=Config(name="tool_agent"), tools={})
    around = AgentEnv(folder=Path(), passages=None, max_new_tokens=80, context_tokens=1000)
    kept: list[OpenAgent] = []
    with pytest.raises(KeyboardInterrupt), open_agent(conversation, character_tokenizer(64), (), around) as agent:
        kept.append(agent)
        engine = TalkingEngine(lambda said: "@echo{}@echo{}")
        attempts(engine, agent, [tool_problem(0, "a"), tool_problem(1, "b")], lockstep=lockstep)
    assert seen == ["struck", *4 * ["call over"], "closed"]
    assert kept[0]._loop.is_closed()
