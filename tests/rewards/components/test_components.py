"""The components of a reward, computed by hand."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from tests.rewards.attempts import attempt

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.core.types import CallStatus, Score, ToolCall
from dagrpo.rewards.components import COMPONENTS, value_of
from dagrpo.rewards.components.lengths import Overlong
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
    **changes: Any,
) -> GradedTrajectory:
    trajectory = attempt(
        text,
        tokens=(tokens,),
        turns=turns,
        calls=(*[call("ok")] * (tool_calls - failed), *[call("failed")] * failed),
        max_new_tokens=20480,
        **changes,
    )
    return GradedTrajectory(trajectory=trajectory, score=Score(extracted=None, verdict=verdict, verifier=verifier))


def value(name: str, found: GradedTrajectory, **parameters: float) -> float:
    return value_of(name, found, COMPONENTS.get(name).config.model_validate(parameters))


PRICES = {"correct": 2.0, "wrong": -1.0, "missing": -3.0, "unverifiable": -0.5}
# Component, attempt, parameters, value. DAPO: a maximum of 20,480 tokens with a buffer of 4,096, the numbers of the paper.
BY_HAND: list[tuple[str, dict[str, Any], dict[str, float], float]] = [
    *(("accuracy", {"verdict": verdict}, PRICES, price) for verdict, price in zip(get_args(Verdict), (2, -1, -3, -0.5), strict=True)),
    ("accuracy", {"verdict": "unverifiable"}, {"wrong": -1.0}, -1.0),  # as little as a wrong one unless it has a price
    ("accuracy", {"verdict": "unverifiable"}, {"wrong": -1.0, "unverifiable": 0.0}, 0.0),
    ("overlong", {"tokens": 0}, {"buffer": 4096}, 0.0),
    ("overlong", {"tokens": 16384}, {"buffer": 4096}, 0.0),
    ("overlong", {"tokens": 16385}, {"buffer": 4096}, -1 / 4096),
    ("overlong", {"tokens": 18432}, {"buffer": 4096}, -0.5),
    ("overlong", {"tokens": 20480}, {"buffer": 4096}, -1.0),
    ("overlong", {"tokens": 30000}, {"buffer": 4096}, -1.0),
    ("tool_calls", {"tool_calls": 0}, {}, 0.0),
    ("tool_calls", {"tool_calls": 4, "failed": 1}, {}, 0.75),
    ("tool_calls", {"tool_calls": 2, "failed": 2}, {}, 0.0),
    ("successful_call", {"tool_calls": 0}, {}, 0.0),
    ("successful_call", {"tool_calls": 3, "failed": 3}, {}, 0.0),
    ("successful_call", {"tool_calls": 3, "failed": 2}, {}, 1.0),
    ("format", {"text": "#### 18", "verifier": "gsm8k"}, {}, 1.0),
    ("format", {"text": "#### 18", "verifier": "math_dapo"}, {}, 0.0),
    ("turn_limit", {"stop_reason": "answered"}, {}, 0.0),
    ("turn_limit", {"stop_reason": "turn_length"}, {}, 0.0),
    ("turn_limit", {"stop_reason": "max_turns"}, {}, -1.0),
    ("turn_limit", {"stop_reason": "max_tokens"}, {}, -1.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "attempted", "parameters", "expected"), BY_HAND)
def test_components_have_the_values_computed_by_hand(
    name: str, attempted: dict[str, Any], parameters: dict[str, float], expected: float
) -> None:
    assert value(name, judged(**attempted), **parameters) == pytest.approx(expected)


@pytest.mark.parametrize(("turns", "reward"), [(1, -1.0), (2, -0.9), (3, -0.8), (5, -0.6), (7, -0.6)])
def test_effort_with_a_weight_of_one_is_the_published_shaping_of_retool(turns: int, reward: float) -> None:
    """min(-0.6, -1 + (num_turns - 2) / 2 * 0.1), where num_turns counts two for every tool turn and answer, and two more."""
    num_turns = 2 * turns
    assert reward == pytest.approx(min(-0.6, -1 + (num_turns - 2) / 2 * 0.1))
    effort = value("tool_effort", judged("wrong", turns=turns, tool_calls=turns - 1))
    assert -1 + effort == pytest.approx(reward)


def test_an_overlong_penalty_that_leaves_no_length_free_is_refused() -> None:
    rollout = Rollout(max_new_tokens=20)
    Overlong(buffer=19).check(rollout)
    with pytest.raises(UserError, match=r"overlong.buffer is 20, .* lower it below rollout.max_new_tokens \(20\)"):
        Overlong(buffer=20).check(rollout)


def _calling(calls: Sequence[ToolCall]) -> GradedTrajectory:
    found = judged()
    return replace(found, trajectory=replace(found.trajectory, calls=tuple(calls)))


def _asking(name: str, arguments: str) -> ToolCall:
    return ToolCall(turn=0, name=name, arguments=arguments, status="failed", result="")


def test_a_call_is_repeated_when_tool_and_arguments_are_the_same_however_they_are_spaced() -> None:
    first = _asking("search", '{"query": "a", "top": 3}')
    same, other = _asking("search", '{"top":3,"query":"a"}'), _asking("search", '{"query": "b", "top": 3}')
    assert value("repeated_call", _calling([first, other, _asking("fetch", first.arguments)])) == 0.0
    assert value("repeated_call", _calling([first, same])) == -0.25
    assert value("repeated_call", _calling([first, other, same, other, first])) == -0.75
    assert value("repeated_call", _calling([first] * 9)) == -1.0
    assert value("repeated_call", _calling([first] * 9), per_call=0.05) == pytest.approx(-0.4)


@pytest.mark.parametrize("written", ["{", "[" * 100_000, "\\ud800", '"\\ud800"', "NaN"])
def test_arguments_that_cannot_be_read_are_compared_as_they_were_written(written: str) -> None:
    assert value("repeated_call", _calling([_asking("", written), _asking("", written), _asking("", "1")])) == -0.25


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
