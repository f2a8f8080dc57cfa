"""Checks of the parameters about a vision tower."""

from typing import TYPE_CHECKING

from dagrpo.core.errors import UserError
from dagrpo.trainer.config.lora import untrained_tower

if TYPE_CHECKING:
    from dagrpo.models.config import Model
    from dagrpo.trainer.config.runtime import Runtime
    from dagrpo.trainer.config.sft import Sft
    from dagrpo.trainer.config.training import Training


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
