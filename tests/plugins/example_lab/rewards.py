"""A reward component of our own: a prize for short texts."""

from typing import Annotated

from pydantic import Field

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted


class Config(Weighted):
    """1 for a text within a limit, else 0."""

    limit: Annotated[int, Field(ge=1)] = Field(100, description="Most characters.")


def is_short(graded: GradedTrajectory, config: Config) -> float:
    """1 or 0."""
    return float(len(graded.trajectory.text) <= config.limit)


shortness = Component(config=Config, function=is_short)
