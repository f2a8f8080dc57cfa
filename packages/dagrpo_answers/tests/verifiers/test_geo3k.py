"""Geometry3K: the form of thoughts and a box, which is the published one read in linear time."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rewards.attempts import attempt, scores

from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader
from dagrpo_answers.verifiers.geo3k import formatted

FORM = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)
PIECES = st.lists(st.sampled_from(["<think>", "</think>", "\\boxed{", "}", "{", "1", "\n", " "]), max_size=10)


@settings(max_examples=500)
@given(PIECES.map("".join))
def test_the_form_is_the_published_one(text: str) -> None:
    assert formatted(text) == (FORM.fullmatch(text) is not None)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>a</think> \\boxed{34}", 1.0),
        ("\\boxed{34}", 0.9),
        ("<think>a</think> \\boxed{35}", 0.1),
        ("34", 0.0),
    ],
)
def test_the_published_reward_is_nine_tenths_accuracy_and_one_tenth_form(
    text: str, reward: float, grader: Grader
) -> None:
    tried = attempt(text=text, ground_truth="34", verifier="geo3k", tokens=(9,))
    weighted = Reward.model_validate({"components": {"accuracy": {"weight": 0.9}, "format": {"weight": 0.1}}})
    assert scores([tried], weighted, grader)[0].reward == pytest.approx(reward)
