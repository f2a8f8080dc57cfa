"""Grading: the prices of section `reward`."""

import pytest

from dagrpo.params.reward import Reward
from dagrpo.records import Score
from dagrpo.rewards.score import grade

PRICES = Reward(correct=2.0, wrong=-1.0, missing=-3.0)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("#### 18.0", Score(extracted="18", correct=True, reward=2.0)),
        ("#### 17", Score(extracted="17", correct=False, reward=-1.0)),
        ("It is 18", Score(extracted=None, correct=False, reward=-3.0)),
        ("", Score(extracted=None, correct=False, reward=-3.0)),
    ],
)
def test_right_wrong_and_missing_have_their_prices(text: str, score: Score) -> None:
    assert grade(text, "18", PRICES) == score


def test_the_extractor_is_the_one_of_the_parameters() -> None:
    assert grade("It is 18", "18", PRICES.model_copy(update={"extractor": "flexible"})).correct is True


def test_the_default_rewards_are_one_and_zero() -> None:
    assert [grade(text, "18", Reward()).reward for text in ("#### 18", "#### 17", "nothing")] == [1.0, 0.0, 0.0]


def test_a_ground_truth_that_is_no_number_is_an_error_and_not_a_wrong_answer() -> None:
    with pytest.raises(ValueError, match="not a plain number"):
        grade("#### 18", "x", PRICES)
