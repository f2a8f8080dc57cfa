"""Several components at once: gates between them, and weights that change over steps."""

import json
from typing import Any

import pytest
from tests.rewards.attempts import attempt, scores

from dagrpo.core.errors import UserError
from dagrpo.rewards.components import lowest_reward
from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader, grade


def reward_of(**components: Any) -> Reward:
    return Reward.model_validate({"components": components})


def test_accuracy_counts_only_in_the_form_that_it_requires(grader: Grader) -> None:
    reward = reward_of(accuracy={"requires": "format", "correct": 2.0, "wrong": -1.0}, format={"weight": 0.5})
    texts = ["#### 18", "#### 17", "18", "17"]
    found = scores([attempt(text, verifier="gsm8k") for text in texts], reward, grader)
    assert [each.components for each in found[:2]] == [
        {"accuracy": 2.0, "format": 1.0},
        {"accuracy": -1.0, "format": 1.0},
    ]
    assert [each.components for each in found[2:]] == [{"accuracy": 0.0, "format": 0.0}] * 2
    assert [each.reward for each in found] == [2.5, -0.5, 0.0, 0.0]


def test_a_weight_goes_linearly_from_one_step_to_another() -> None:
    form = reward_of(format={"weight": 1.0, "final_weight": 0.0, "first_step": 10, "final_step": 20}).components[
        "format"
    ]
    weights = {step: form.weight_at(step) for step in (1, 10, 15, 19, 20, 500)}
    assert weights == {1: 1.0, 10: 1.0, 15: 0.5, 19: pytest.approx(0.1), 20: 0.0, 500: 0.0}


def test_a_component_is_computed_at_the_step_at_which_its_weight_is_0(grader: Grader) -> None:
    reward = reward_of(accuracy={}, format={"weight": 0.0, "final_weight": 1.0, "final_step": 5})
    first, last = (grade([attempt("#### 18")], reward, grader, step)[0].score for step in (1, 5))
    assert first.components == last.components == {"accuracy": 1.0, "format": 1.0}
    assert (first.reward, last.reward) == (1.0, 2.0)


def test_the_lowest_reward_is_over_both_weights_and_a_closed_gate() -> None:
    rising = reward_of(
        accuracy={"correct": 1.0, "wrong": 1.0, "missing": 1.0, "unverifiable": 1.0, "requires": "format"}, format={}
    )
    assert lowest_reward(rising.components) == 0.0
    falling = reward_of(accuracy={"final_weight": -2.0, "final_step": 5})
    assert lowest_reward(falling.components) == -2.0


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
    with pytest.raises((UserError, ValueError), match=message):
        Reward.model_validate({"components": components})


def test_the_verdict_is_of_all_instructions_and_passed_tests_the_share(grader: Grader) -> None:
    truth = json.dumps([["punctuation:no_comma", {}], ["startend:quotation", {}]])
    attempts = [attempt(text, ground_truth=truth, verifier="ifeval") for text in ('"yes"', "yes", "a, b", " ")]
    found = scores(attempts, reward_of(accuracy={}, passed_tests={"weight": 0.5}), grader)
    assert [each.verdict for each in found] == ["right", "wrong", "wrong", "missing"]
    assert [each.reward for each in found] == [1.5, 0.25, 0.0, 0.0]
    assert found[1].extracted == "punctuation:no_comma"
