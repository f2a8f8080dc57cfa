"""Section `training`: steps, batches and the optimizer of GRPO."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dagrpo.params.base import Section


class Training(Section):
    steps: Annotated[int, Field(ge=1)] = Field(120, description="GRPO steps: sample, grade, update.")
    prompts_per_step: Annotated[int, Field(ge=1)] = Field(32, description="Distinct prompts per step.")
    samples_per_prompt: Annotated[int, Field(ge=2)] = Field(8, description="Completions per prompt: the group of GRPO.")
    mini_batches: Annotated[int, Field(ge=1)] = Field(
        1, description="Optimizer updates per step; divides prompts_per_step."
    )
    micro_batch_size: Annotated[int, Field(ge=1)] = Field(
        256, description="Completions per forward pass: memory, not result."
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(1e-4, description="Peak learning rate of AdamW.")
    learning_rate_warmup_steps: Annotated[int, Field(ge=0)] = Field(
        10, description="Updates of linear warm-up; constant after that."
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="AdamW weight decay.")
    max_grad_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="Gradients are clipped to this norm.")
    max_prompt_tokens: Annotated[int, Field(ge=1)] = Field(
        64, description="A longer prompt is an error that names the row."
    )
    save_every: Annotated[int, Field(ge=1)] = Field(20, description="Steps between resumable states.")

    @model_validator(mode="after")
    def _mini_batches_divide(self) -> Self:
        if self.prompts_per_step % self.mini_batches:
            raise ValueError(
                f"training.mini_batches ({self.mini_batches}) does not divide prompts_per_step "
                f"({self.prompts_per_step}): change one of them"
            )
        return self
