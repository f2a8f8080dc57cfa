"""Section `report`: what the report shows."""

from typing import Annotated

from pydantic import Field

from dagrpo.core.section import Section


class Report(Section):
    completions: Annotated[int, Field(ge=0, le=1000)] = Field(
        5, description="Number of best and of worst completions on the page."
    )
    smoothing: Annotated[int, Field(ge=1, le=100_000)] = Field(
        10, description="Steps in the moving average of each learning curve."
    )
    prompts: Annotated[int, Field(ge=0, le=1000)] = Field(
        6,
        description="Number of training prompts whose trajectories the page displays over steps, as far as it has room.",
    )
