"""Section `algorithm`: the GRPO objective."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.errors import UserError
from dagrpo.params.base import Section


class Algorithm(Section):
    advantage: Literal["grpo"] = Field("grpo", description="grpo: reward minus the mean of the prompt's group.")
    normalize_by_std: bool = Field(
        True, description="Divide by the group's standard deviation (GRPO); off is Dr. GRPO."
    )
    clip_low: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="The ratio is clipped below at 1 - clip_low."
    )
    clip_high: Annotated[float, Field(gt=0)] = Field(0.2, description="The ratio is clipped above at 1 + clip_high.")
    kl_coefficient: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Weight of the k3 KL divergence to the initial policy; at 0 no reference model is loaded."
    )
    aggregation: Literal["token-mean"] = Field(
        "token-mean", description="token-mean: sum over tokens / number of tokens in the mini-batch."
    )

    @model_validator(mode="after")
    def _clip_is_ordered(self) -> Self:
        if self.clip_high < self.clip_low:
            raise UserError(
                f"algorithm.clip_high ({self.clip_high}) is below clip_low ({self.clip_low}): use clip_high >= clip_low (DAPO: 0.28, 0.2)"
            )
        return self
