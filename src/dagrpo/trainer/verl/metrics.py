"""Metrics of verl: under our names or below verl/."""

from collections.abc import Mapping
from typing import Any

from dagrpo.trainer.foreign.metrics import named

SAME = {
    "critic/score/mean": "reward/mean",
    "actor/grad_norm": "policy/grad_norm",
    "actor/lr": "policy/learning_rate",
}
LENGTHS = {  # verl's count the results of tools and the words of users, too
    "response_length/mean": "rollout/length_mean",
    "response_length/max": "rollout/length_max",
}


def step_of(line: Mapping[str, Any], *, several_turns: bool) -> tuple[int, dict[str, float]]:
    """Return the step and the metrics of a line of verl's file logger."""
    return named(line, SAME if several_turns else SAME | LENGTHS, "verl")
