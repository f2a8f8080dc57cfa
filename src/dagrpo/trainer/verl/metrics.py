"""Metrics of verl: under our names or below verl/."""

from collections.abc import Mapping
from typing import Any

SAME = {
    "critic/score/mean": "reward/mean",
    "actor/grad_norm": "policy/grad_norm",
    "actor/lr": "policy/learning_rate",
}
LENGTHS = {  # verl's count the results of tools and the words of users, too
    "response_length/mean": "rollout/length_mean",
    "response_length/max": "rollout/length_max",
    "response_length/clip_ratio": "rollout/truncated_fraction",
}


def step_of(line: Mapping[str, Any], *, several_turns: bool) -> tuple[int, dict[str, float]]:
    """Return the step and the metrics of a line of verl's file logger, `{"step": 1, "data": {...}}`; numbers alone."""
    ours = SAME if several_turns else SAME | LENGTHS
    numbers = {name: value for name, value in line["data"].items() if isinstance(value, int | float)}
    return int(line["step"]), {ours.get(name, f"verl/{name}"): float(value) for name, value in numbers.items()}
