"""Check that SGLang can serve a model folder, before a slow start."""

import math
from pathlib import Path

from dagrpo.checkpoints.weight_map import INDEX, files_of_weights
from dagrpo.engine.errors import ServerError
from dagrpo.engine.sglang import NOT_WITH_PICTURES, SERVED_PATCH_SIZES, require_divided
from dagrpo.models.pictures import PREPROCESSOR, takes_pictures
from dagrpo.utils.files import read_object

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def require_servable(model: Path, ranks: int = 1) -> None:
    """Raise UserError, before a slow start, if SGLang could not serve a folder.

    The message says which file is missing, what is wrong with its index, or why `ranks` ranks cannot divide the model.
    """
    missing = _missing_from(model)
    if missing is not None:
        raise ServerError(f"{model} cannot be served, it has no {missing}: run the stage that makes this model again.")
    if (model / INDEX).is_file():  # SGLang opens what it names
        files_of_weights(model)
    _require_served_patches(model)
    if ranks > 1:
        _require_divided(model, ranks)


def _require_divided(model: Path, ranks: int) -> None:
    if takes_pictures(model):
        raise ServerError(f"{model}: tensor_parallel is {ranks}, {NOT_WITH_PICTURES}.")
    config = read_object(model / "config.json")
    text = config.get("text_config") or config
    heads = text.get("num_attention_heads")
    if heads:
        inner = math.gcd(*(text.get(width) or 0 for width in ("intermediate_size", "moe_intermediate_size")))
        require_divided(heads, text.get("num_key_value_heads") or heads, inner, ranks, f"{model}: tensor_parallel")


def _require_served_patches(model: Path) -> None:
    config = read_object(model / "config.json")
    patch_size = (config.get("vision_config") or {}).get("patch_size")
    served = SERVED_PATCH_SIZES.get(config.get("model_type", ""), patch_size)
    if patch_size != served:
        raise ServerError(
            f"{model} cannot be served: it has patches of {patch_size} pixels, and SGLang sees a {config['model_type']} with "
            f"patches of {served} alone: set model.fresh.vision.patch_size to {served}, or take another family."
        )


def _missing_from(model: Path) -> str | None:
    if not (model / "config.json").is_file():
        return "config.json"
    if not any((model / name).is_file() for name in TOKENIZER_FILES):
        return "tokenizer (tokenizer.json)"
    if not (model / INDEX).is_file() and not any(model.glob("*.safetensors")):
        return "weights (*.safetensors)"
    if takes_pictures(model) and not (model / PREPROCESSOR).is_file():
        return f"{PREPROCESSOR}, which says how its pictures are prepared"
    return None
