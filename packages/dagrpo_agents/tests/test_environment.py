"""A class whose public methods are tools, as TRL has it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packages.dagrpo_agents.tests.scripted_policy import PlainChat, ScriptedPolicy, session_with

from dagrpo.chat.renderers import Message, ToolSchema
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Trajectory
from dagrpo.rollout.agents import AgentContext
from dagrpo_agents.environment import AGENT, Config, open_environment


def context_in(folder: Path) -> AgentContext:
    return AgentContext(
        chat=PlainChat(), tools={}, folder=folder, passages=None, max_new_tokens=50, context_tokens=1000
    )


WORLDS = "packages.dagrpo_agents.tests.worlds"
BREAKING = {"broken": "broken", "judge": "Judge", "lazy": "lazy"}  # reward functions, and their names


def attempts(
    folder: Path, *policies: ScriptedPolicy, environment: str = "Guess", rewards: Sequence[str] = ()
) -> list[Trajectory]:
    config = Config(
        name="environment",
        environment=f"{WORLDS}:{environment}",
        reward_functions=[f"{WORLDS}:{name}" for name in rewards],
    )

    async def run() -> list[Trajectory]:
        async with open_environment(config, context_in(folder)) as agent:
            sessions = [session_with(policy) for policy in policies]
            return await asyncio.gather(*(agent(session.prompt, 0, session) for session in sessions))

    return asyncio.run(asyncio.wait_for(run(), 30))


def test_its_methods_are_called_and_its_reward_is_reported(tmp_path: Path) -> None:
    policy = ScriptedPolicy('@guess{"number": 7}', '@guess{"number": 12}', '@guess{"number": 3}', "It is 3.")
    (trajectory,) = attempts(tmp_path, policy)
    assert [(call.name, call.status, call.result) for call in trajectory.calls] == [
        ("guess", "ok", "wrong"),
        ("guess", "failed", "ValueError: it is below 10"),
        ("guess", "ok", "right"),
    ]
    assert trajectory.reported == {"environment": pytest.approx(1 / 3)}
    assert (trajectory.stop_reason, trajectory.text, len(trajectory.samples)) == ("answered", "It is 3.", 1)


def test_the_policy_is_told_of_its_tools_and_of_what_the_environment_says_first(tmp_path: Path) -> None:
    policy = ScriptedPolicy("3")
    attempts(tmp_path, policy)
    prompt = "".join(map(chr, policy.asked[0][0]))
    assert '"name": "guess"' in prompt
    assert '"description": "What it may be."' in prompt
    assert "<user>1+2=? It is below 10.\x03" in prompt
    assert "reset" not in prompt
    assert "hidden" not in prompt


class Untold(PlainChat):
    """A chat template that leaves out what tools there are."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, tuple[int, ...]]:
        return super().prompt(messages, ())


def untold_attempt(folder: Path, *, fresh: bool = False, **example_changes: Any) -> Trajectory:
    session = session_with(ScriptedPolicy("3"), **example_changes)
    session.chat = Untold()

    async def run() -> Trajectory:
        context = replace(context_in(folder), fresh=fresh)
        async with open_environment(Config(name="environment", environment=f"{WORLDS}:Guess"), context) as agent:
            return await agent(session.prompt, 0, session)

    return asyncio.run(asyncio.wait_for(run(), 30))


def test_a_template_that_leaves_its_tools_out_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^The environment offers the tool guess, .* would never learn of it: choose a model, .*"
    ):
        untold_attempt(tmp_path)


def test_demonstrations_tell_of_its_tools_and_so_does_nothing_to_a_fresh_model(tmp_path: Path) -> None:
    assert untold_attempt(tmp_path, fresh=True).text == "3"
    called = ({"role": "assistant", "content": "<tool_call>"},)
    assert untold_attempt(tmp_path, demonstration=called).text == "3"


def test_what_it_does_not_offer_cannot_be_called(tmp_path: Path) -> None:
    (trajectory,) = attempts(tmp_path, ScriptedPolicy("@_hidden{}@get_reward{}", "?"))
    assert [call.status for call in trajectory.calls] == ["unknown_tool", "unknown_tool"]


@pytest.mark.parametrize(
    ("environment", "rewards", "fault"),
    [
        ("Broken", [], "out of order"),
        *(("Guess", [name], f"{shown} raised RuntimeError: no score") for name, shown in BREAKING.items()),
    ],
)
def test_what_breaks_excludes_the_attempt(tmp_path: Path, environment: str, rewards: list[str], fault: str) -> None:
    (trajectory,) = attempts(tmp_path, ScriptedPolicy("3"), environment=environment, rewards=rewards)
    assert trajectory.excluded
    assert fault in trajectory.fault


@pytest.mark.parametrize(
    ("rewards", "told"),
    [
        (["two_numbers"], r"two_numbers returns \[1.0, 2.0\] for one attempt: return a list of one finite number"),
        (["huge"], r"huge returns \[an integer of 1,329 bits\] for one attempt"),
        (["large"], r"large returns \[1e\+39\] for one attempt"),
        (["odd"], r"odd returns .* for one attempt: return a list of one finite number"),
        (["long"], r"long returns 'x+\.\.\.x+' for one attempt"),
        (["nowhere"], r"rollout\.agent\.reward_functions: .*nowhere` cannot be imported"),
        (["__name__"], r"reward_functions: .*__name__ is not a function"),
        (["score", "score"], "two functions are called score: rename one"),
        ([], r"Huge\.get_reward\(\) is an integer of 1,329 bits: return a finite number"),
    ],
)
def test_a_reward_that_cannot_count_is_refused(tmp_path: Path, rewards: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told) as refused:
        attempts(tmp_path, ScriptedPolicy("3"), environment="Unrewarded" if rewards else "Huge", rewards=rewards)
    assert len(str(refused.value)) < 500


def test_only_a_class_that_says_what_an_attempt_is_worth_reports_by_any_kind_of_number(tmp_path: Path) -> None:
    def reports(environment: str, *rewards: str) -> bool:
        return AGENT.reports(
            Config(name="environment", environment=f"{WORLDS}:{environment}", reward_functions=list(rewards))
        )

    assert reports("Guess")
    assert not reports("Unrewarded")
    assert reports("Unrewarded", f"{WORLDS}:score")
    (trajectory,) = attempts(tmp_path, ScriptedPolicy("3"), environment="Numpy")
    assert trajectory.reported == {"environment": 0.5}


@pytest.mark.parametrize(
    ("environment", "names"), [("NoSuch", "NoSuch"), ("Undescribed", "peek"), ("__name__", "class")]
)
def test_what_is_no_environment_is_refused(tmp_path: Path, environment: str, names: str) -> None:
    with pytest.raises(UserError, match=names):
        attempts(tmp_path, ScriptedPolicy(), environment=environment)


def test_reward_functions_are_asked_about_the_object_the_row_and_the_conversation(tmp_path: Path) -> None:
    policy = ScriptedPolicy('@add{"number": 2}', '@add{"number": 3}', "5")
    (trajectory,) = attempts(tmp_path, policy, environment="Unrewarded", rewards=["score", "turns", "right_columns"])
    assert trajectory.reported == {"score": 5.0, "turns": 3.0}  # the third says None: nothing


def test_reward_functions_see_what_follows_the_thoughts(tmp_path: Path) -> None:
    policy = ScriptedPolicy('<think>secret</think>@add{"number": 2}', "<think>secret</think>2")
    (trajectory,) = attempts(tmp_path, policy, environment="Unrewarded", rewards=["seen", "turns"])
    assert trajectory.reported == {"seen": 1.0, "turns": 2.0}
    assert "secret" in str(trajectory.messages)


def test_random_numbers_that_all_attempts_share_are_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts(tmp_path, ScriptedPolicy("3"), ScriptedPolicy("3"), environment="Dice")
    told = capsys.readouterr()
    assert (told.out + told.err).replace("\n", " ").count("draws random numbers") == 1
    attempts(tmp_path, ScriptedPolicy("3"), environment="Guess")
    assert "draws random numbers" not in capsys.readouterr().err
