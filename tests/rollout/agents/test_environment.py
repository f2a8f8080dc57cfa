"""A class whose public methods are tools, as TRL has it."""

import asyncio
from pathlib import Path

import pytest
from tests.rollout.gateway.scripted_policy import PlainChat, ScriptedPolicy, session_with

from dagrpo.errors import UserError
from dagrpo.rollout.agents import AgentContext
from dagrpo.rollout.agents.environment import Config, open_environment
from dagrpo.rollout.trajectory import Trajectory


def context_in(folder: Path) -> AgentContext:
    return AgentContext(
        chat=PlainChat(), tools={}, folder=folder, passages=None, max_new_tokens=50, context_tokens=1000
    )


def attempts(folder: Path, *policies: ScriptedPolicy, environment: str = "Guess") -> list[Trajectory]:
    config = Config(name="environment", environment=f"tests.rollout.agents.worlds:{environment}")

    async def run() -> list[Trajectory]:
        async with open_environment(config, context_in(folder)) as agent:
            sessions = [session_with(policy) for policy in policies]
            return await asyncio.gather(*(agent(session.problem, 0, session) for session in sessions))

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
    assert "[user]1+2=? It is below 10.\x01" in prompt
    assert "reset" not in prompt
    assert "hidden" not in prompt


def test_what_it_does_not_offer_cannot_be_called(tmp_path: Path) -> None:
    (trajectory,) = attempts(tmp_path, ScriptedPolicy("@_hidden{}@get_reward{}", "?"))
    assert [call.status for call in trajectory.calls] == ["unknown_tool", "unknown_tool"]


def test_every_attempt_has_an_object_of_its_own(tmp_path: Path) -> None:
    right, wrong = attempts(
        tmp_path, ScriptedPolicy('@guess{"number": 3}', "3"), ScriptedPolicy('@guess{"number": 1}', "1")
    )
    assert (right.reported, wrong.reported) == ({"environment": 1.0}, {"environment": 0.0})


def test_an_environment_that_breaks_excludes_the_attempt(tmp_path: Path) -> None:
    (trajectory,) = attempts(tmp_path, ScriptedPolicy(), environment="Broken")
    assert trajectory.excluded
    assert "out of order" in trajectory.fault


@pytest.mark.parametrize(
    ("environment", "names"), [("NoSuch", "NoSuch"), ("Undescribed", "peek"), ("__name__", "class")]
)
def test_what_is_no_environment_is_refused(tmp_path: Path, environment: str, names: str) -> None:
    with pytest.raises(UserError, match=names):
        attempts(tmp_path, ScriptedPolicy(), environment=environment)
