"""successful_call: a credit for using a tool at all."""

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted


class Config(Weighted):
    """1 if at least one tool call succeeded, else 0."""


def successful_call(graded: GradedTrajectory, config: Config) -> float:
    """Return 1 or 0. Gamed by one call that works and whose result is not used: keep the weight below a right answer's."""
    return float(any(call.status == "ok" for call in graded.trajectory.calls))


COMPONENT = Component(config=Config, function=successful_call, limits=lambda config: (0.0, 1.0), needs_tools=True)
