"""Components of tool calls: credits, a share, a penalty for repeats."""

import json
from typing import Annotated

from pydantic import Field

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.core.types import ToolCall
from dagrpo.rewards.components import Component, Weighted
from dagrpo.utils.files import canonical_json


class RepeatedCall(Weighted):
    """0 to -1: a penalty for every call that repeats an earlier one, successful or not."""

    per_call: Annotated[float, Field(gt=0, le=1)] = Field(0.25, description="Penalty for each such call.")


def repeated_call(graded: GradedTrajectory, config: RepeatedCall) -> float:
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


REPEATED_CALL = Component(
    config=RepeatedCall, function=repeated_call, limits=lambda config: (-1.0, 0.0), needs_tools=True
)


class SuccessfulCall(Weighted):
    """1 if at least one tool call succeeded, else 0."""


def successful_call(graded: GradedTrajectory, config: SuccessfulCall) -> float:
    """Return 1 or 0. Gamed by one call that works and whose result is not used: keep the weight below a right answer's."""
    return float(any(call.status == "ok" for call in graded.trajectory.calls))


SUCCESSFUL_CALL = Component(
    config=SuccessfulCall, function=successful_call, limits=lambda config: (0.0, 1.0), needs_tools=True
)


class ToolCalls(Weighted):
    """Share of successful tool calls; 0 without a call."""


def tool_calls(graded: GradedTrajectory, config: ToolCalls) -> float:
    """Return successful calls / calls; 0 without a call. Gamed by one easy call that is sure to work."""
    calls = graded.trajectory.calls
    return sum(call.status == "ok" for call in calls) / len(calls) if calls else 0.0


TOOL_CALLS = Component(config=ToolCalls, function=tool_calls, limits=lambda config: (0.0, 1.0), needs_tools=True)


# ReTool's credit for trying (arXiv:2504.11536).
class ToolEffort(Weighted):
    """A credit for every tool turn and the answer after it, unless the answer is right (ReTool)."""

    per_turn: Annotated[float, Field(gt=0, le=1000)] = Field(0.1, description="Credit for each tool turn.")
    most: Annotated[float, Field(gt=0, le=1000)] = Field(0.4, description="Largest credit for an attempt.")


def tool_effort(graded: GradedTrajectory, config: ToolEffort) -> float:
    """Return min(most, per_turn * tool turns); 0 if the answer is right. Turns that follow no tool call do not count.

    Gamed by calls for the credit's sake where the answer would be wrong anyway.
    """
    attempt = graded.trajectory
    if graded.score.verdict == "right":
        return 0.0
    return min(config.most, config.per_turn * min(attempt.turns - 1, len(attempt.calls)))


TOOL_EFFORT = Component(
    config=ToolEffort, function=tool_effort, limits=lambda config: (0.0, config.most), needs_tools=True
)
