"""Section `report`: what the report shows."""

from typing import Annotated

from pydantic import Field

from dagrpo.core.section import Section


class Report(Section):
    completions: Annotated[int, Field(ge=0, le=1000)] = Field(
        5, description="How many of the best and of the worst completions to show."
    )
    smoothing: Annotated[int, Field(ge=1, le=100_000)] = Field(
        10, description="Steps in the moving average drawn over each learning curve."
    )
    prompts: Annotated[int, Field(ge=0, le=1000)] = Field(
        6, description="How many prompts of training to show step by step, as far as the page has room."
    )
