"""The reward that a program reports."""

from collections.abc import Mapping

import pytest
from tests.rewards.attempts import attempt

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.core.types import Score
from dagrpo.rewards.components import COMPONENTS, value_of


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
    score = Score(extracted=None, verdict="wrong", verifier="gsm8k")
    graded = GradedTrajectory(trajectory=attempt(reported=rewards), score=score)
    assert value_of("reported", graded, COMPONENTS.get("reported").config.model_validate({"name": name})) == value
