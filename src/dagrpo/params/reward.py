"""Section `reward`: what a completion is worth."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.errors import UserError
from dagrpo.params.base import EXTRACTION, Extractor, Section

VerifierName = Literal[
    "gsm8k", "math_dapo", "math", "math_verify", "geo3k", "exact_match", "substring_match", "countdown"
]


class Weights(Section):
    accuracy: float = Field(1.0, description="The answer: reward.correct, wrong, missing or unverifiable.")
    format: float = Field(0.0, description="1 when the completion has the form its verifier asks for, else 0.")
    overlong: float = Field(
        0.0, description="0 to -1 over the last reward.overlong_buffer tokens of rollout.max_new_tokens (DAPO)."
    )
    tool_calls: float = Field(0.0, description="Share of tool calls that worked; 0 without a call.")
    tool_effort: float = Field(
        0.0,
        description="0.1 for every tool turn and answer after it, at most 0.4, unless the answer is right (ReTool).",
    )

    @model_validator(mode="after")
    def _something_counts(self) -> Self:
        if not any(self.model_dump().values()):
            raise UserError("every reward.weights is 0, so nothing could be learned: give one of them a weight")
        return self


class Reward(Section):
    verifier: VerifierName | Literal["task"] = Field(
        "task", description="What compares an answer with the ground truth; task: the one that the task names."
    )
    extractor: Extractor = Field("strict", description=f"How the answer is read. {EXTRACTION}")
    correct: float = Field(1.0, description="Accuracy of a right answer.")
    wrong: float = Field(0.0, description="Accuracy of a wrong answer.")
    missing: float = Field(0.0, description="Accuracy when there is no answer to read.")
    unverifiable: float = Field(
        0.0, description="Accuracy of an answer that could not be compared within reward.verify_seconds."
    )
    weights: Weights = Field(Weights(), description="The reward is the sum of these components, each times its weight.")
    overlong_buffer: Annotated[int, Field(ge=1)] = Field(
        4, description="Tokens before rollout.max_new_tokens over which the overlong penalty grows from 0 to 1."
    )
    verify_seconds: Annotated[float, Field(gt=0)] = Field(
        2.0, description="Longest time math-verify may take for one answer."
    )
    permuted: Annotated[bool, Field()] = Field(
        False,
        description="Control experiment: shuffle the rewards within each step, so that they say nothing; learning must stop.",
    )
