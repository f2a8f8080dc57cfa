"""turn_limit: a penalty for using up all turns or tokens."""

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted


class Config(Weighted):
    """-1 if rollout.agent.max_turns or max_tokens ended the attempt, else 0."""


def turn_limit(graded: GradedTrajectory, config: Config) -> float:
    """Return -1 or 0. Gamed by giving up early: any answer in the first turn escapes it, so pay wrong answers no more than this."""
    return -float(graded.trajectory.stop_reason in ("max_turns", "max_tokens"))


COMPONENT = Component(config=Config, function=turn_limit, limits=lambda config: (-1.0, 0.0))
