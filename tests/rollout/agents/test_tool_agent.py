"""Our own loop of turns: every call is answered, every limit is named, and nothing is learned from a failure of ours."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest
from tests.rollout.scripted_chat import END, ScriptedChat, text_of
from tests.rollout.talking import Echo, TalkingEngine, agent_with, attempts, tool_problem

from dagrpo.chat.renderers import Message, ToolSchema
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Trajectory
from dagrpo.rollout.agents.tool_agent import Config, ToolAgent
from dagrpo.rollout.open_agent import OpenAgent
from dagrpo.rollout.session import SessionLimits
from dagrpo.rollout.tool_runtime.toolbox import Toolbox
from dagrpo.tools import CallContext, InfrastructureFailure, ToolFailure


def once(call: str, answer: str = "done") -> Any:
    """A policy that calls in its first turn and answers in its second."""
    return lambda said: answer if "<tool>" in said else call


def attempt(script: Any, tool: Echo | None = None, **limits: Any) -> Trajectory:
    with agent_with({"echo": tool or Echo()}, **limits) as agent:
        (trajectory,) = attempts(TalkingEngine(script), agent, [tool_problem()])
    return trajectory


def tool_results(trajectory: Trajectory) -> list[str]:
    return [message["content"] for message in trajectory.messages if message["role"] == "tool"]


def test_a_call_and_its_answer_are_one_sample_whose_mask_is_what_the_policy_wrote() -> None:
    trajectory = attempt(once('@echo{"text": "hi"}'))
    (sample,) = trajectory.samples
    assert text_of(sample.token_ids) == (
        f'<user>q{END}<assistant>@echo{{"text": "hi"}}{END}<tool>hi{END}<assistant>done{END}'
    )
    assert text_of(sample.completion_ids) == f'@echo{{"text": "hi"}}{END}done{END}'
    written = [f'@echo{{"text": "hi"}}{END}', f"done{END}"]
    assert tuple(sample.completion_logprobs) == tuple(
        -float(place) for part in written for place in range(1, len(part) + 1)
    )
    assert (trajectory.text, trajectory.turns, trajectory.stop_reason) == ("done", 2, "answered")
    assert trajectory.tokens == sum(map(len, written))
    assert trajectory.cached_tokens == 14


def test_every_call_of_a_turn_is_answered_in_order_the_broken_ones_with_what_is_wrong() -> None:
    trajectory = attempt(once('@echo{"text": "a"} @{} @nope{} @echo{"text": }'))
    assert [(call.name, call.status) for call in trajectory.calls] == [
        ("echo", "ok"),
        ("", "missing_name"),
        ("nope", "unknown_tool"),
        ("", "undecodable"),
    ]
    assert tool_results(trajectory) == [
        "a",
        "It has no name.",
        "There is no tool `nope`; the tools are: echo.",
        "It is no JSON.",
    ]
    assert [message["tool_call_id"] for message in trajectory.messages[1:5]] == [f"call_{i}" for i in range(4)]


def test_the_calls_of_the_last_allowed_turn_are_not_run_and_recorded_as_such() -> None:
    ran: list[str] = []

    def run(arguments: Mapping[str, Any], context: CallContext) -> str:
        ran.append(arguments["text"])
        return "x"

    trajectory = attempt(lambda said: 'so @echo{"text": "#### 3"}', Echo(run), max_turns=3)
    assert trajectory.stop_reason == "max_turns"
    assert [call.status for call in trajectory.calls] == ["ok", "ok", "not_run"]
    assert ran == ["#### 3", "#### 3"]
    assert (trajectory.turns, trajectory.text) == (3, "so "), "an argument is no answer"


def test_a_trajectory_that_is_full_ends_and_its_last_turn_has_only_the_room_that_is_left() -> None:
    prompt = len(f"<user>q{END}<assistant>")
    trajectory = attempt(lambda said: '@echo{"text": "abc"}', tokens=prompt + 60)
    assert trajectory.stop_reason == "max_tokens"
    assert len(trajectory.samples[0].token_ids) <= prompt + 60
    cut = attempt(once('@echo{"text": "a"}', "x" * 79), tokens=prompt + 45)
    assert (cut.stop_reason, cut.finish_reason) == ("turn_length", "length")
    assert len(cut.samples[0].token_ids) == prompt + 45


def _fail(arguments: Mapping[str, Any], context: CallContext) -> str:
    raise ToolFailure("division by zero")


@pytest.mark.parametrize(
    ("behaviour", "told", "status"),
    [
        (_fail, "division by zero", "failed"),
        (lambda arguments, context: asyncio.sleep(60), "echo gave no result within 0.5 seconds.", "timed_out"),
    ],
)
def test_a_call_that_fails_or_takes_too_long_is_told_to_the_policy(behaviour: Any, told: str, status: str) -> None:
    trajectory = attempt(once("@echo{}"), Echo(behaviour), call_seconds=0.5)
    assert (tool_results(trajectory), [call.status for call in trajectory.calls]) == ([told], [status])
    assert trajectory.stop_reason == "answered"


def test_a_failure_of_the_infrastructure_is_tried_again_and_then_excludes_the_trajectory() -> None:
    failures = iter([True, True, False])

    def flaky(arguments: Mapping[str, Any], context: CallContext) -> str:
        if next(failures, True):
            raise InfrastructureFailure("the tool server is gone")
        return "there"

    assert tool_results(attempt(once("@echo{}"), Echo(flaky))) == ["there"]
    excluded = attempt(once("@echo{}"), Echo(flaky))
    assert excluded.excluded
    assert excluded.fault == "the tool server is gone"
    assert [call.status for call in excluded.calls] == ["not_run"]


def test_a_trajectory_that_takes_too_long_is_ended_and_its_attempt_forgotten() -> None:
    tool = Echo(lambda arguments, context: asyncio.sleep(60))
    trajectory = attempt(once("@echo{}"), tool, seconds=0.05)
    assert trajectory.stop_reason == "seconds"
    assert tool.forgotten == ["0-0-1"]


def test_calls_of_a_turn_run_side_by_side_as_far_as_allowed() -> None:
    at_once, most = 0, 0

    async def count() -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return "x"

    attempt(once("@echo{} " * 5), Echo(lambda arguments, context: count()), parallel_calls=2)
    assert most == 2


def test_a_call_that_waits_for_its_turn_does_not_use_up_its_seconds() -> None:
    config = Config(name="tool_agent", call_seconds=1.0)
    tool = Echo(lambda arguments, context: asyncio.sleep(0.3, "x"))
    toolbox = Toolbox({"echo": tool}, config, {"echo": asyncio.Semaphore(1)})
    most = SessionLimits(turns=3, tokens=1000, new_tokens=80)
    with closing(asyncio.new_event_loop()) as loop:
        agent = OpenAgent(ToolAgent(toolbox, config), ScriptedChat(), most, loop)
        (trajectory,) = attempts(TalkingEngine(once("@echo{} " * 4)), agent, [tool_problem()])
    assert [call.status for call in trajectory.calls] == ["ok"] * 4


@pytest.mark.parametrize(
    ("keep", "result"),
    [
        ("head", "0123456789abcdef[20 characters left out]"),
        ("tail", "[20 characters left out]klmnopqrstuvwxyz"),
        ("both", "01234567[20 characters left out]stuvwxyz"),
    ],
)
def test_a_long_result_keeps_what_it_is_told_to_keep(keep: str, result: str) -> None:
    tool = Echo(lambda arguments, context: "0123456789abcdefghijklmnopqrstuvwxyz")
    assert tool_results(attempt(once("@echo{}"), tool, max_result_characters=16, keep_of_result=keep)) == [result]


def test_a_simulated_user_answers_until_it_has_nothing_more_to_say() -> None:
    problem = tool_problem(interaction="tests.rollout.agents.users:STUBBORN")
    with agent_with({"echo": Echo()}) as agent:
        (trajectory,) = attempts(TalkingEngine(lambda said: f"answer {said.count('again')}"), agent, [problem])
    assert [message["content"] for message in trajectory.messages] == [
        "answer 0",
        "again",
        "answer 1",
        "again",
        "answer 2",
    ]
    assert (trajectory.stop_reason, trajectory.turns, trajectory.text) == ("user_done", 3, "answer 2")


def test_where_the_template_rewrites_the_past_a_new_sample_begins_and_no_token_counts_twice() -> None:
    problem = tool_problem(interaction="tests.rollout.agents.users:STUBBORN")
    with agent_with({"echo": Echo()}, chat=ScriptedChat(rewrites=True)) as agent:
        (trajectory,) = attempts(TalkingEngine(lambda said: "no"), agent, [problem])
    first, second, third = trajectory.samples
    assert text_of(first.token_ids) == f"<user>q{END}<assistant>no{END}"
    assert text_of(second.token_ids) == f"<user>q{END}<assistant>no{END}<user>again{END}<assistant>no{END}"
    assert [text_of(sample.completion_ids) for sample in (first, second, third)] == [f"no{END}"] * 3
    assert trajectory.tokens == 9


def test_a_failure_ends_the_turns_other_calls_before_the_attempt_is_forgotten() -> None:
    seen: list[str] = []

    async def work(arguments: Mapping[str, Any], context: CallContext) -> str:
        if arguments["text"] == "fails":
            await asyncio.sleep(0)
            raise InfrastructureFailure("gone")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            seen.append("ended")
        raise AssertionError

    class Watched(Echo):
        async def forget(self, trajectory: str) -> None:
            seen.append("forgotten")

    script = once('@echo{"text": "fails"}@echo{"text": "slow"}')
    assert attempt(script, Watched(work), call_retries=0).excluded
    assert seen == ["ended", "forgotten"]


def test_a_tool_that_cancels_itself_is_a_failure_of_the_infrastructure() -> None:
    def cancelled(arguments: Mapping[str, Any], context: CallContext) -> str:
        raise asyncio.CancelledError

    trajectory = attempt(once("@echo{}"), Echo(cancelled))
    assert trajectory.excluded
    assert trajectory.fault == "A call of echo was cancelled."


@pytest.mark.parametrize("result", [None, 5, b"bytes", ["text"]])
def test_a_tool_that_returns_no_text_is_its_makers_mistake(result: Any) -> None:
    class Odd(Echo):
        async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> Any:
            return result

    with pytest.raises(UserError, match=f"the tool echo returned {type(result).__name__}: .* has to return a text"):
        attempt(once("@echo{}"), Odd())


def test_a_template_that_refuses_what_the_policy_said_ends_the_attempt_and_not_the_run() -> None:
    class Refusing(ScriptedChat):
        def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, tuple[int, ...]]:
            if any(message["role"] == "assistant" for message in messages):
                raise UserError("the chat template refuses two calls in a turn: use another model.")
            return super().prompt(messages, tools)

    problem = tool_problem(interaction="tests.rollout.agents.users:STUBBORN")
    with agent_with({"echo": Echo()}, chat=Refusing(rewrites=True)) as agent:
        (trajectory,) = attempts(TalkingEngine(lambda said: "no"), agent, [problem])
    assert (trajectory.stop_reason, trajectory.turns, trajectory.text) == ("template_refused", 1, "no")
