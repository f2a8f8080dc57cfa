"""tool_effort: ReTool's credit for trying (arXiv:2504.11536)."""

from typing import Annotated

from pydantic import Field

from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted


class Config(Weighted):
    """A credit for every tool turn and the answer after it, unless the answer is right (ReTool)."""

    per_turn: Annotated[float, Field(gt=0, le=1000)] = Field(0.1, description="Credit for each tool turn.")
    most: Annotated[float, Field(gt=0, le=1000)] = Field(0.4, description="Largest credit for an attempt.")


def tool_effort(graded: GradedTrajectory, config: Config) -> float:
    """Return min(most, per_turn * tool turns); 0 if the answer is right. Turns that follow no tool call do not count.

    Gamed by calls for the credit's sake where the answer would be wrong anyway.
    """
    attempt = graded.trajectory
    if graded.score.verdict == "right":
        return 0.0
    return min(config.most, config.per_turn * min(attempt.turns - 1, len(attempt.calls)))


COMPONENT = Component(config=Config, function=tool_effort, limits=lambda config: (0.0, config.most), needs_tools=True)
