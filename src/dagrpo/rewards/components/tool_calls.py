"""tool_calls: the share of successful tool calls."""

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted


class Config(Weighted):
    """Share of successful tool calls; 0 without a call."""


def tool_calls(graded: GradedTrajectory, config: Config) -> float:
    """Return successful calls / calls; 0 without a call. Gamed by one easy call that is sure to work."""
    calls = graded.trajectory.calls
    return sum(call.status == "ok" for call in calls) / len(calls) if calls else 0.0


COMPONENT = Component(config=Config, function=tool_calls, limits=lambda config: (0.0, 1.0), needs_tools=True)
