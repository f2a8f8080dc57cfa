"""Checks of the parameters about a vision tower."""

from typing import TYPE_CHECKING

from dagrpo.core.errors import UserError
from dagrpo.trainer.config.lora import untrained_tower

if TYPE_CHECKING:
    from dagrpo.config.schema import Params


def check_vision(params: "Params") -> None:
    """Raise UserError for parameters of a tower that the model has not, or that is not trained."""
    if params.model.may_take_pictures:
        _check_with_tower(params)
    else:
        _check_without_tower(params)
    if params.runtime.training.micro_batch_patches is not None and params.training.vision == "frozen":
        raise UserError(
            "runtime.training.micro_batch_patches is for a vision tower that is trained, and training.vision is frozen: set "
            "runtime.training.micro_batch_patches to null"
        )


def _check_without_tower(params: "Params") -> None:
    changed = {
        "training.vision": params.training.vision == "frozen",
        "training.vision_learning_rate": params.training.vision_learning_rate is not None,
        "training.lora.vision": params.training.lora.vision,
        "sft.vision": params.sft.vision == "frozen",
        "sft.lora.vision": params.sft.lora.vision,
        "runtime.training.micro_batch_patches": params.runtime.training.micro_batch_patches is not None,
    }
    for name, is_changed in changed.items():
        if is_changed:
            raise UserError(
                f"{name} is of a vision tower, and the model has none: leave it out, or choose a vision-language model "
                "(model.fresh.vision.family, or one of the hub)"
            )


def _check_with_tower(params: "Params") -> None:
    """Check the parameters of a fresh model with a vision tower; one from the hub is checked when it is loaded."""
    for name, section in (("training", params.training), ("sft", params.sft)):
        outside = section.lora.is_on and not section.lora.vision
        if params.model.source == "fresh" and outside and section.vision == "trained":
            raise UserError(untrained_tower(name))
    if params.model.source == "fresh" and params.runtime.training.share_prompts:
        raise UserError(
            "runtime.training.share_prompts works with text alone, and this model takes pictures: set it to false"
        )
    for name, layout in (("training", params.runtime.training.layout), ("sft", params.runtime.sft.layout)):
        if params.model.source == "fresh" and layout == "packed":
            raise UserError(
                f"runtime.{name}.layout packed works with text alone, and this model takes pictures: set it to padded or null"
            )
