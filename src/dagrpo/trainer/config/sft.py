"""Section `sft`: supervised fine-tuning before GRPO.

On the train split's own answers and demonstrations.
"""

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import LARGEST_BATCH, MOST_STEPS, Section
from dagrpo.trainer.config.lora import Lora, require_tower_agrees

if TYPE_CHECKING:
    from dagrpo.trainer.config.runtime import Runtime

MomentsDtype = Literal["float32", "bfloat16"]
MOMENTS = (
    "Type in which both moments of AdamW are kept between updates, which compute in float32. bfloat16, rounded stochastically: half the "
    "memory of the moments, two thirds of a state's bytes, other results."
)


class Sft(Section):
    steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = Field(
        300, description="Optimizer steps. 0: pass the model through unchanged."
    )
    batch_size: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = Field(128, description="Examples per step.")
    learning_rate: Annotated[float, Field(gt=0, le=10)] = Field(1e-3, description="Peak learning rate of AdamW.")
    learning_rate_warmup_steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = Field(
        20, description="Steps of linear warm-up."
    )
    learning_rate_final: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0, description="Share of the peak to which the learning rate falls linearly. 1.0: it stays at the peak."
    )
    learning_rate_decay_steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = Field(
        1000, description="Steps of the fall, counted from the first step. The rate is constant after them."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Type in which the policy is computed. Weights, gradients, the optimizer's update, softmax and loss are always "
        "float32. On a GPU, bfloat16 is several times faster.",
    )
    moments_dtype: MomentsDtype = Field("float32", description=MOMENTS)
    vision: Literal["frozen", "trained"] = Field(
        "trained", description="Train the vision tower of a model that has one, or freeze it."
    )
    lora: Lora = Field(
        Lora(), description="Low-rank adapter to train instead of the weights. It is merged into them at the end."
    )
    weight_decay: Annotated[float, Field(ge=0, le=10)] = Field(0.01, description="AdamW weight decay.")
    max_grad_norm: Annotated[float, Field(gt=0, le=1e9)] = Field(1.0, description="Clip gradients to this norm.")

    @model_validator(mode="after")
    def _check_adapter_in_trained_parts(self) -> Self:
        require_tower_agrees("sft", self.vision, self.lora)
        return self

    def check(self, runtime: "Runtime") -> None:
        """Raise UserError if the processes cannot share a batch."""
        if self.batch_size % runtime.sft.processes:
            raise UserError(
                f"runtime.sft.processes ({runtime.sft.processes}) does not divide sft.batch_size "
                f"({self.batch_size}): change one of them"
            )
