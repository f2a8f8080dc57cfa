"""repeated_call: a penalty for repeating a tool call."""

import json
from typing import Annotated

from pydantic import Field

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.core.types import ToolCall
from dagrpo.rewards.components import Component, Weighted
from dagrpo.utils.files import canonical_json


class Config(Weighted):
    """0 to -1: a penalty for every call that repeats an earlier one, successful or not."""

    per_call: Annotated[float, Field(gt=0, le=1)] = Field(0.25, description="Penalty for each such call.")


def repeated_call(graded: GradedTrajectory, config: Config) -> float:
    """Return -min(1, per_call * calls with the name and arguments of an earlier one).

    Gamed by another spelling of the same question, such as one more space in an argument. It also penalises a policy
    that rightly repeats a call after a time-out.
    """
    calls = graded.trajectory.calls
    repeated = len(calls) - len({_key(call) for call in calls})
    return -min(1.0, config.per_call * repeated)


def _key(call: ToolCall) -> tuple[str, str]:
    """Return tool and arguments of a call, the same for any order of keys and any space between them."""
    try:
        return call.name, canonical_json(json.loads(call.arguments))
    except (ValueError, RecursionError):  # not JSON, or nested without end: as the policy wrote it
        return call.name, call.arguments


COMPONENT = Component(config=Config, function=repeated_call, limits=lambda config: (-1.0, 0.0), needs_tools=True)
