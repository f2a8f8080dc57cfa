"""Parse a program's reported rewards: JSON with `reward`, `rewards`, or both."""

from collections.abc import Mapping
from typing import Any

from dagrpo.core.escape import brief
from dagrpo.core.untrusted_json import read_json
from dagrpo.rewards.reporting import as_reward

MOST_REWARDS = 64
LONGEST_NAME = 80


class ProgramFailure(Exception):
    """Failure of a program to do its part. The message is a sentence that names the fault."""


def reported_rewards(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the rewards by name; `reward` is one more, of that name. Raises ProgramFailure if one of them is no number."""
    rewards = report.get("rewards") or {}
    if not isinstance(rewards, dict) or len(rewards) > MOST_REWARDS:
        raise ProgramFailure(
            f"The `rewards` that it reports are not an object of at most {MOST_REWARDS} names with their numbers."
        )
    if report.get("reward") is not None:
        rewards = {**rewards, "reward": report["reward"]}
    return {_name(name): _number(name, value) for name, value in rewards.items()}


def report_in(output: bytes) -> dict[str, float]:
    """Return the rewards in the last line of a program's output; {} if the line is something else."""
    last = output.rstrip().rpartition(b"\n")[2]
    try:
        report = read_json(last, constants=True)
    except ValueError:
        return {}
    return reported_rewards(report) if isinstance(report, dict) else {}


def _name(name: str) -> str:
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ProgramFailure(
            f"It reports a reward named {brief(name)}: a name has at most {LONGEST_NAME} visible characters."
        )
    return name


def _number(name: str, value: Any) -> float:
    try:
        return as_reward(value)
    except (TypeError, ValueError):
        raise ProgramFailure(
            f"It reports the reward `{name}` as {brief(value)}, which is not a finite number below 1e30."
        ) from None
