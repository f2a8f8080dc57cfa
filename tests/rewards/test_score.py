"""What attempts are worth: prices, weights that change over steps, gates between components, and which text is read."""

import json
from typing import Any

import pytest
from tests.rewards.attempts import attempt, scores

from dagrpo.core.types import ToolCall
from dagrpo.rewards.components import lowest_reward
from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader, grade


def rewarded(**components: Any) -> Reward:
    return Reward.model_validate({"components": components})


def test_verdicts_have_their_prices(grader: Grader) -> None:
    reward = rewarded(accuracy={"correct": 2.0, "wrong": -1.0, "missing": -3.0, "unverifiable": -0.25})
    attempts = [attempt(text) for text in ("#### 18.0", "#### 17", "It is 18", "")]
    attempts.append(attempt("\\boxed{" + "x" * 5000 + "}", verifier="math"))  # neither right nor wrong
    found = scores(attempts, reward, grader)
    assert [(each.verdict, each.correct, each.reward) for each in found] == [
        ("right", True, 2.0),
        ("wrong", False, -1.0),
        ("missing", False, -3.0),
        ("missing", False, -3.0),
        ("unverifiable", None, -0.25),
    ]
    assert [each.extracted for each in found[:4]] == ["18", "17", None, None]
    assert all(each.components == {"accuracy": each.reward} for each in found)


def test_the_reward_is_the_sum_of_the_weighted_components_and_only_those_are_computed(grader: Grader) -> None:
    reward = rewarded(
        tool_effort={},
        tool_calls={"weight": 0.1},
        overlong={"weight": 0.5, "buffer": 4},
        format={"weight": 0.2},
        accuracy={"weight": 0.8, "wrong": -1.0},
    )
    calls = tuple(
        ToolCall(turn=0, name="calculator", arguments="{}", status=status, result="")
        for status in ("ok", "failed", "ok", "ok")
    )
    tried = attempt(text="#### 17", ground_truth="18", verifier="gsm8k", tokens=(18,), turns=3, calls=calls)
    score = scores([tried], reward, grader)[0]
    assert score.components == {
        "accuracy": -1.0,
        "format": 1.0,
        "overlong": -0.5,
        "tool_calls": 0.75,
        "tool_effort": pytest.approx(0.2),
    }
    assert score.reward == 0.8 * -1.0 + 0.2 * 1.0 + 0.5 * -0.5 + 0.1 * 0.75 + 0.1 * 2  # to the bit, in this order
    form_alone = rewarded(accuracy={"weight": 0.0}, format={"weight": 2.0})
    assert scores([tried], form_alone, grader)[0].components == {"format": 1.0}


def test_a_verifier_of_the_parameters_overrides_the_one_of_the_task(grader: Grader) -> None:
    attempts = [attempt("Answer: 18"), attempt("#### 18")]
    reward = Reward.model_validate({"verifier": "math_dapo", "components": {"accuracy": {}, "format": {}}})
    overridden = scores(attempts, reward, grader)
    assert [score.verdict for score in scores(attempts, Reward(), grader)] == ["missing", "right"]
    assert [score.verdict for score in overridden] == ["right", "missing"]
    assert [score.components["format"] for score in overridden] == [1.0, 0.0]


def test_accuracy_counts_only_in_the_form_that_it_requires(grader: Grader) -> None:
    reward = rewarded(accuracy={"requires": "format", "correct": 2.0, "wrong": -1.0}, format={"weight": 0.5})
    found = scores([attempt(text, verifier="gsm8k") for text in ("#### 18", "#### 17", "18", "17")], reward, grader)
    assert [(each.components["accuracy"], each.components["format"], each.reward) for each in found] == [
        (2.0, 1.0, 2.5),
        (-1.0, 1.0, -0.5),
        (0.0, 0.0, 0.0),
        (0.0, 0.0, 0.0),
    ]


def test_a_weight_goes_linearly_from_one_step_to_another_and_its_component_is_always_computed(grader: Grader) -> None:
    falling = {"weight": 1.0, "final_weight": 0.0, "first_step": 10, "final_step": 20}
    form = rewarded(format=falling).components["format"]
    weights = {step: form.weight_at(step) for step in (1, 10, 15, 19, 20, 500)}
    assert weights == {1: 1.0, 10: 1.0, 15: 0.5, 19: pytest.approx(0.1), 20: 0.0, 500: 0.0}
    reward = rewarded(accuracy={}, format={"weight": 0.0, "final_weight": 1.0, "final_step": 5})
    first, last = (grade([attempt("#### 18")], reward, grader, step)[0].score for step in (1, 5))
    assert first.components == last.components == {"accuracy": 1.0, "format": 1.0}
    assert (first.reward, last.reward) == (1.0, 2.0)


def test_the_lowest_reward_is_over_both_weights_and_a_closed_gate() -> None:
    prices = dict.fromkeys(("correct", "wrong", "missing", "unverifiable"), 1.0)
    assert lowest_reward(rewarded(accuracy={**prices, "requires": "format"}, format={}).components) == 0.0
    assert lowest_reward(rewarded(accuracy={"final_weight": -2.0, "final_step": 5}).components) == -2.0


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ({"accuracy": {"requires": "format"}}, "requires is format, which is no other component with a weight"),
        ({"accuracy": {"requires": "accuracy"}}, "which is no other component"),
        ({"accuracy": {"requires": "format"}, "format": {"weight": 0.0}}, "which is no other component with a weight"),
        ({"accuracy": {"requires": "overlong"}, "overlong": {}}, "overlong, which is never above 0"),
        ({"accuracy": {"requires": "format"}, "format": {"requires": "reported"}, "reported": {}}, "requires another"),
        ({"accuracy": {"final_weight": 1.0}}, "belong together"),
        ({"accuracy": {"final_weight": 1.0, "first_step": 5, "final_step": 5}}, "let first_step be smaller"),
        ({"accuracy": {"weight": 0.0, "final_weight": 0.0, "final_step": 5}}, "no reward.components has a weight"),
    ],
)
def test_gates_and_changing_weights_that_cannot_work_are_refused(components: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reward.model_validate({"components": components})


def test_the_verdict_is_of_all_instructions_and_passed_tests_the_share(grader: Grader) -> None:
    truth = json.dumps([["punctuation:no_comma", {}], ["startend:quotation", {}]])
    attempts = [attempt(text, ground_truth=truth, verifier="ifeval") for text in ('"yes"', "yes", "a, b", " ")]
    found = scores(attempts, rewarded(accuracy={}, passed_tests={"weight": 0.5}), grader)
    assert [(each.verdict, each.reward) for each in found] == [
        ("right", 1.5),
        ("wrong", 0.25),
        ("wrong", 0.0),
        ("missing", 0.0),
    ]
    assert found[1].extracted == "punctuation:no_comma"
