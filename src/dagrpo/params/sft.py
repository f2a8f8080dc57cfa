"""Section `sft`: supervised fine-tuning on the train split's own answers and demonstrations, before GRPO."""

from typing import Annotated, Literal

from pydantic import Field

from dagrpo.params.base import LARGEST_BATCH, MOST_STEPS, Section


class Sft(Section):
    steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = Field(
        300, description="Optimizer steps; 0 passes the model through unchanged."
    )
    batch_size: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = Field(128, description="Examples per step.")
    learning_rate: Annotated[float, Field(gt=0, le=10)] = Field(1e-3, description="Peak learning rate of AdamW.")
    learning_rate_warmup_steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = Field(
        20, description="Steps of linear warm-up."
    )
    learning_rate_final: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0, description="Share of the peak that the learning rate falls to, linearly; 1.0: it stays."
    )
    learning_rate_decay_steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = Field(
        1000, description="Steps of that fall, counted from the first; constant after that."
    )
    vision: Literal["frozen", "trained"] = Field(
        "trained", description="The vision tower of a model that has one: trained with the rest, or left as it is."
    )
    weight_decay: Annotated[float, Field(ge=0, le=10)] = Field(0.01, description="AdamW weight decay.")
    max_grad_norm: Annotated[float, Field(gt=0, le=1e9)] = Field(1.0, description="Gradients are clipped to this norm.")
