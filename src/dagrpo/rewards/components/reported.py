"""reported: the reward that the program or environment reports."""

from pydantic import Field

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted
from dagrpo.rewards.reporting import whole


class Config(Weighted):
    """A reward that a program or an environment reports; 0 if it reports none of that name."""

    name: str = Field("", description='Name of the reported reward; "": the one named `reward`, else the sum of all.')


def reported(graded: GradedTrajectory, config: Config) -> float:
    """Return the reward of that name, or the whole."""
    rewards = graded.trajectory.reported
    return rewards.get(config.name, 0.0) if config.name else whole(rewards)


COMPONENT = Component(config=Config, function=reported, needs_report=True)
