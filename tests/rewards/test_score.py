"""What attempts are worth: prices, weights, and which text is read."""

import pytest
from tests.rewards.attempts import attempt, scores

from dagrpo.core.types import Score, ToolCall
from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader


def rewarded(**components: dict[str, float]) -> Reward:
    return Reward.model_validate({"components": components})


PRICES = rewarded(accuracy={"correct": 2.0, "wrong": -1.0, "missing": -3.0})


def grade(text: str, reward: Reward, grader: Grader) -> Score:
    return scores([attempt(text)], reward, grader)[0]


@pytest.mark.parametrize(
    ("text", "extracted", "correct", "price", "verdict"),
    [
        ("#### 18.0", "18", True, 2.0, "right"),
        ("#### 17", "17", False, -1.0, "wrong"),
        ("It is 18", None, False, -3.0, "missing"),
        ("", None, False, -3.0, "missing"),
    ],
)
def test_right_wrong_and_missing_have_their_prices(
    text: str, extracted: str | None, correct: bool, price: float, verdict: str, grader: Grader
) -> None:
    score = grade(text, PRICES, grader)
    assert (score.extracted, score.correct, score.reward, score.verdict) == (extracted, correct, price, verdict)
    assert score.components == {"accuracy": price}


def test_an_unverifiable_answer_is_neither_right_nor_wrong_and_has_its_own_price(grader: Grader) -> None:
    reward = rewarded(accuracy={"wrong": -1.0, "unverifiable": -0.25})
    hopeless = attempt("\\boxed{" + "x" * 5000 + "}", verifier="math")
    score = scores([hopeless], reward, grader)[0]
    assert (score.correct, score.reward, score.verdict) == (None, -0.25, "unverifiable")


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
    by_task = scores(attempts, Reward(), grader)
    reward = Reward.model_validate({"verifier": "math_dapo", "components": {"accuracy": {}, "format": {}}})
    overridden = scores(attempts, reward, grader)
    assert [score.verdict for score in by_task] == ["missing", "right"]
    assert [score.verdict for score in overridden] == ["right", "missing"]
    assert [score.components["format"] for score in overridden] == [1.0, 0.0]
