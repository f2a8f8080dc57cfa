"""Section `reward`: what a completion is worth."""

from typing import Annotated

from pydantic import Field

from dagrpo.params.base import Extractor, Section


class Reward(Section):
    extractor: Extractor = Field(
        "strict", description="How the answer is read: strict: after the last ####; flexible: the last number."
    )
    correct: float = Field(1.0, description="Reward of a right answer.")
    wrong: float = Field(0.0, description="Reward of a wrong answer.")
    missing: float = Field(0.0, description="Reward when there is no answer to read.")
    permuted: Annotated[bool, Field()] = Field(
        False,
        description="Control experiment: shuffle the rewards within each step, so that they say nothing; learning must stop.",
    )
