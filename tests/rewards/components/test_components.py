"""The components of a reward, computed by hand."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from tests.rewards.attempts import attempt

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.core.types import CallStatus, Score, StopReason, ToolCall
from dagrpo.rewards.components import COMPONENTS, overlong, value_of
from dagrpo.rollout.config import Rollout
from dagrpo_answers.verifier import Verdict


def call(status: CallStatus) -> ToolCall:
    return ToolCall(turn=0, name="calculator", arguments="{}", status=status, result="")


def judged(
    verdict: Verdict = "wrong",
    *,
    text: str = "",
    verifier: str = "gsm8k",
    tokens: int = 1,
    turns: int = 1,
    tool_calls: int = 0,
    failed: int = 0,
) -> GradedTrajectory:
    trajectory = attempt(
        text,
        tokens=(tokens,),
        turns=turns,
        calls=(*[call("ok")] * (tool_calls - failed), *[call("failed")] * failed),
        max_new_tokens=20480,
    )
    return GradedTrajectory(trajectory=trajectory, score=Score(extracted=None, verdict=verdict, verifier=verifier))


def value(name: str, found: GradedTrajectory, **parameters: float) -> float:
    return value_of(name, found, COMPONENTS.get(name).config.model_validate(parameters))


@pytest.mark.parametrize(
    ("verdict", "price"), [("right", 2.0), ("wrong", -1.0), ("missing", -3.0), ("unverifiable", -0.5)]
)
def test_every_verdict_has_its_price(verdict: Verdict, price: float) -> None:
    assert value("accuracy", judged(verdict), correct=2.0, wrong=-1.0, missing=-3.0, unverifiable=-0.5) == price


def test_an_unverifiable_answer_pays_as_little_as_a_wrong_one_unless_it_has_a_price() -> None:
    assert value("accuracy", judged("unverifiable"), wrong=-1.0) == -1.0
    assert value("accuracy", judged("unverifiable"), wrong=-1.0, unverifiable=0.0) == 0.0


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20480, -1.0), (30000, -1.0)]
)
def test_the_overlong_penalty_is_the_one_of_dapo(tokens: int, penalty: float) -> None:
    """A maximum of 20,480 tokens with a buffer of 4,096, the numbers of the paper."""
    assert value("overlong", judged(tokens=tokens), buffer=4096) == pytest.approx(penalty)


@pytest.mark.parametrize(("calls", "failed", "share"), [(0, 0, 0.0), (1, 0, 1.0), (4, 1, 0.75), (2, 2, 0.0)])
def test_tool_calls_are_worth_the_share_that_worked(calls: int, failed: int, share: float) -> None:
    assert value("tool_calls", judged(turns=9, tool_calls=calls, failed=failed)) == share


@pytest.mark.parametrize(("turns", "reward"), [(1, -1.0), (2, -0.9), (3, -0.8), (5, -0.6), (7, -0.6)])
def test_effort_with_a_weight_of_one_is_the_published_shaping_of_retool(turns: int, reward: float) -> None:
    """min(-0.6, -1 + (num_turns - 2) / 2 * 0.1), where num_turns counts two for every tool turn and answer, and two more."""
    num_turns = 2 * turns
    assert reward == pytest.approx(min(-0.6, -1 + (num_turns - 2) / 2 * 0.1))
    effort = value("tool_effort", judged("wrong", turns=turns, tool_calls=turns - 1))
    assert -1 + effort == pytest.approx(reward)


def test_the_form_is_the_one_of_the_verifier() -> None:
    assert value("format", judged(text="#### 18", verifier="gsm8k")) == 1.0
    assert value("format", judged(text="#### 18", verifier="math_dapo")) == 0.0


def test_an_overlong_penalty_that_leaves_no_length_free_is_refused() -> None:
    rollout = Rollout(max_new_tokens=20)
    overlong.Config(buffer=19).check(rollout)
    with pytest.raises(UserError, match=r"overlong.buffer is 20, .* lower it below rollout.max_new_tokens \(20\)"):
        overlong.Config(buffer=20).check(rollout)


def _attempted(calls: Sequence[ToolCall] = (), **changes: Any) -> GradedTrajectory:
    found = judged()
    return replace(found, trajectory=replace(found.trajectory, calls=tuple(calls), **changes))


def _asking(name: str, arguments: str) -> ToolCall:
    return ToolCall(turn=0, name=name, arguments=arguments, status="failed", result="")


@pytest.mark.parametrize(("calls", "failed", "credit"), [(0, 0, 0.0), (3, 3, 0.0), (3, 2, 1.0), (1, 0, 1.0)])
def test_one_call_that_worked_earns_the_credit(calls: int, failed: int, credit: float) -> None:
    assert value("successful_call", judged(turns=9, tool_calls=calls, failed=failed)) == credit


def test_a_call_is_repeated_when_tool_and_arguments_are_the_same_however_they_are_spaced() -> None:
    first = _asking("search", '{"query": "a", "top": 3}')
    same, other = _asking("search", '{"top":3,"query":"a"}'), _asking("search", '{"query": "b", "top": 3}')
    assert value("repeated_call", _attempted([first, other, _asking("fetch", first.arguments)])) == 0.0
    assert value("repeated_call", _attempted([first, same])) == -0.25
    assert value("repeated_call", _attempted([first, other, same, other, first])) == -0.75
    assert value("repeated_call", _attempted([first] * 9)) == -1.0
    assert value("repeated_call", _attempted([first] * 9), per_call=0.05) == pytest.approx(-0.4)


@pytest.mark.parametrize("written", ["{", "[" * 100_000, "\\ud800", '"\\ud800"', "NaN"])
def test_arguments_that_cannot_be_read_are_compared_as_they_were_written(written: str) -> None:
    assert value("repeated_call", _attempted([_asking("", written), _asking("", written), _asking("", "1")])) == -0.25


@pytest.mark.parametrize(
    ("reason", "penalty"), [("answered", 0.0), ("turn_length", 0.0), ("max_turns", -1.0), ("max_tokens", -1.0)]
)
def test_an_attempt_that_used_up_its_turns_or_tokens_pays(reason: StopReason, penalty: float) -> None:
    assert value("turn_limit", _attempted(stop_reason=reason)) == penalty


ATTEMPTS = [
    judged(verdict, text=text, tokens=tokens, turns=turns, tool_calls=calls, failed=failed)
    for verdict, text, tokens, (turns, calls, failed) in itertools.product(
        get_args(Verdict), ["", "#### 4"], [0, 20480, 90_000], [(1, 0, 0), (3, 2, 1), (30, 29, 0)]
    )
]


BOUNDED = [
    name for name in COMPONENTS.own_names() if COMPONENTS.get(name).limits and COMPONENTS.get(name).function is not None
]


@pytest.mark.parametrize("name", BOUNDED)
def test_no_value_is_outside_of_the_limits_of_its_component(name: str) -> None:
    component = COMPONENTS.get(name)
    config = component.config(**({"correct": 2.0, "wrong": -0.5, "missing": -1.0} if name == "accuracy" else {}))
    assert component.limits is not None
    lowest, highest = component.limits(config)
    values = {value_of(name, each, config) for each in ATTEMPTS}
    assert lowest <= min(values)
    assert max(values) <= highest
    if name == "accuracy":
        assert (lowest, highest) == (min(values), max(values)) == (-1.0, 2.0)


@pytest.mark.parametrize(
    ("rewards", "name", "value"),
    [
        ({}, "", 0.0),
        ({"a": 0.5, "b": 0.25}, "", 0.75),
        ({"a": 0.5, "reward": 2.0}, "", 2.0),
        ({"a": 0.5, "reward": 2.0}, "a", 0.5),
        ({"a": 0.5}, "b", 0.0),
    ],
)
def test_reported_is_the_reward_of_that_name_or_the_whole(
    rewards: Mapping[str, float], name: str, value: float
) -> None:
    score = Score(extracted=None, verdict="wrong", verifier="gsm8k")
    graded = GradedTrajectory(trajectory=attempt(reported=rewards), score=score)
    assert value_of("reported", graded, COMPONENTS.get("reported").config.model_validate({"name": name})) == value
