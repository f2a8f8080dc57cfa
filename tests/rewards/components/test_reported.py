"""The reward that a program reports."""

from collections.abc import Mapping

import pytest

from dagrpo.core.types import Attempt
from dagrpo.rewards.components import COMPONENTS, Judged, value_of


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
def test_it_is_the_reward_of_that_name_or_the_whole(rewards: Mapping[str, float], name: str, value: float) -> None:
    attempt = Attempt(text="", ground_truth="", verifier="gsm8k", tokens=1, reported=rewards)
    judged = Judged(attempt=attempt, verdict="wrong", extracted=None, verifier="gsm8k", max_new_tokens=10)
    assert value_of("reported", judged, COMPONENTS.get("reported").config.model_validate({"name": name})) == value
