"""Part `lora` of sections, and checks of a vision tower.

The adapter is trained in place of the weights.
"""

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import Section

if TYPE_CHECKING:
    from dagrpo.models.config import Model
    from dagrpo.trainer.config.runtime import Runtime
    from dagrpo.trainer.config.sft import Sft
    from dagrpo.trainer.config.training import Training

ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", max_length=200)]
_NO_LINEAR_LAYERS = ("embed", "lm_head", "wte", "wpe")  # parts of the names of embeddings, and of the head


class Lora(Section):
    """A low-rank adapter (Hu et al. 2021, arXiv 2106.09685), off by default.

    No dropout: the trainer's logprobs would no longer be those of the policy that the engine samples from.
    """

    rank: Annotated[int, Field(ge=0, le=4096)] = Field(
        0,
        description="Rank of the LoRA adapter, which is trained while the weights stay frozen. 0: no adapter; the "
        "weights are trained.",
    )
    alpha: Annotated[int, Field(ge=1, le=65_536)] = Field(
        32, description="Scale of the adapter: alpha / rank times the product of its two matrices is added to a weight."
    )
    target_modules: Annotated[list[ModuleName], Field(max_length=1000)] | None = Field(
        None,
        description="Linear layers that get an adapter, by name or its end, such as q_proj. null: all of the language "
        "model but its head.",
    )
    vision: bool = Field(False, description="Give the layers of a trained vision tower an adapter as well.")

    @property
    def is_on(self) -> bool:
        """Return True if an adapter is trained instead of the weights."""
        return self.rank > 0

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if not self.is_on and (self.target_modules is not None or self.vision):
            key = "target_modules" if self.target_modules is not None else "vision"
            raise UserError(
                f"lora.{key} is given, but lora.rank is 0, which trains no adapter: set lora.rank, such as 16"
            )
        if self.target_modules == []:
            raise UserError(
                "lora.target_modules is empty, so that nothing would be trained: set it to null for all layers"
            )
        for name in self.target_modules or []:
            if any(part in name for part in _NO_LINEAR_LAYERS):
                raise UserError(
                    f"lora.target_modules names {name}, but embeddings and the head have no adapter here: leave it out, or train all "
                    "weights (lora.rank: 0)"
                )
        return self


class TrainedLora(Lora):
    """The adapter of `training`, which an engine samples with."""

    serving: Literal["merged", "adapter"] = Field(
        "merged",
        description="Weights that the engine gets after each step. merged: all weights with the adapter added. adapter: "
        "the adapter alone, which the engine applies to the weights that it started with; logprobs differ by "
        "rounding.",
    )

    @model_validator(mode="after")
    def _check_engine_can_serve_it(self) -> Self:
        if self.serving == "merged":
            return self
        start, end = "training.lora.serving is adapter, but", "or set training.lora.serving to merged"
        if not self.is_on:
            raise UserError(f"{start} lora.rank is 0, which trains no adapter: set lora.rank, such as 16, {end}")
        if self.vision:
            raise UserError(
                f"{start} lora.vision adds an adapter to the vision tower, which no engine serves: set lora.vision to false, {end}"
            )
        return self


def require_tower_agrees(section: str, vision: str, lora: Lora) -> None:
    """Raise UserError for an adapter in a tower that is not trained. `section`: training or sft; `vision`: its key."""
    if lora.vision and vision == "frozen":
        raise UserError(
            f"{section}.lora.vision is true, but {section}.vision is frozen: set the first to false, or the second to trained"
        )


def untrained_tower(section: str) -> str:
    """Return the error message for a tower that is to be trained without the adapter in it."""
    return (
        f"{section}.vision is trained, but {section}.lora trains nothing outside its adapter, which leaves out the vision tower: "
        f"set {section}.vision to frozen, or {section}.lora.vision to true"
    )


def check_vision(model: "Model", sft: "Sft", training: "Training", runtime: "Runtime") -> None:
    """Raise UserError for parameters of a tower that the model has not, or that is not trained."""
    if model.may_take_pictures:
        _check_with_tower(model, sft, training, runtime)
    else:
        _check_without_tower(model, sft, training, runtime)
    if runtime.training.micro_batch_patches is not None and training.vision == "frozen":
        raise UserError(
            "runtime.training.micro_batch_patches is for a vision tower that is trained, and training.vision is frozen: set "
            "runtime.training.micro_batch_patches to null"
        )


def _check_without_tower(model: "Model", sft: "Sft", training: "Training", runtime: "Runtime") -> None:
    changed = {
        "training.vision": training.vision == "frozen",
        "training.vision_learning_rate": training.vision_learning_rate is not None,
        "training.lora.vision": training.lora.vision,
        "sft.vision": sft.vision == "frozen",
        "sft.lora.vision": sft.lora.vision,
        "runtime.training.micro_batch_patches": runtime.training.micro_batch_patches is not None,
    }
    for name, is_changed in changed.items():
        if is_changed:
            raise UserError(
                f"{name} is of a vision tower, and the model has none: leave it out, or choose a vision-language model "
                "(model.fresh.vision.family, or one of the hub)"
            )


def _check_with_tower(model: "Model", sft: "Sft", training: "Training", runtime: "Runtime") -> None:
    """Check the parameters of a fresh model with a vision tower; one from the hub is checked when it is loaded."""
    for name, section in (("training", training), ("sft", sft)):
        outside = section.lora.is_on and not section.lora.vision
        if model.source == "fresh" and outside and section.vision == "trained":
            raise UserError(untrained_tower(name))
    if model.source == "fresh" and runtime.training.share_prompts:
        raise UserError(
            "runtime.training.share_prompts works with text alone, and this model takes pictures: set it to false"
        )
    for name, layout in (("training", runtime.training.layout), ("sft", runtime.sft.layout)):
        if model.source == "fresh" and layout == "packed":
            raise UserError(
                f"runtime.{name}.layout packed works with text alone, and this model takes pictures: set it to padded or null"
            )
