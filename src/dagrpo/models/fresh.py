"""Tiny models with random weights, which learn on a CPU in minutes.

A Qwen2, or a Qwen-VL if a vision tower is asked for. Initialised as in transformers (normal, std 0.02). Not pretrained. The shapes of
towers are the published models' own in small: windows of 8 patches a side, layers of full attention in between, and positions split
among time, height and width in their proportions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerBase

from dagrpo.checkpoints.folder import new_checkpoint
from dagrpo.checkpoints.manifest import Manifest
from dagrpo.checkpoints.modelling import PreTrainedConfig, PreTrainedModel
from dagrpo.checkpoints.modules import model_class_of, state_of
from dagrpo.checkpoints.tensors import StateTensors, total_bytes
from dagrpo.core.errors import UserError
from dagrpo.models.config import FRESH_TOKENS, MERGED, Fresh, Vision, smallest_picture
from dagrpo.models.folder import finish, save_config, save_tokenizer
from dagrpo.models.pictures import PREPROCESSOR
from dagrpo.models.tokenizer import PICTURE, PICTURE_END, PICTURE_START, VIDEO, character_tokenizer
from dagrpo.tools import ToolFunction, functions_of
from dagrpo.utils.files import write_json

ROPE_THETA = 10_000.0  # for contexts of hundreds of tokens
WINDOW = 8  # patches a side, of the layers of Qwen2.5-VL that do not see the whole picture
POSITIONS = 256  # a grid of 16 x 16, between which Qwen3-VL interpolates
OPENAI_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def make_fresh(destination: Path, shape: Fresh, dtype: torch.dtype, max_pixels: int | None = None) -> Manifest:
    """Write a fresh model. The same shape and seed give the same bytes."""
    tokenizer = _tokenizer(shape)
    config = _config(shape, tokenizer)
    model = _initialised(config, shape.seed).to(dtype)
    tensors = StateTensors(state_of(model))
    origin = {"source": "fresh", "fresh": shape.model_dump(), "max_pixels": max_pixels}
    with new_checkpoint(destination, total_bytes(tensors)) as folder:
        save_config(folder, config, type(model).__name__)
        save_tokenizer(folder, tokenizer)
        if shape.takes_pictures:
            save_preprocessor(folder, shape.vision, max_pixels)
        return finish(folder, tensors, dtype, origin)


def config_of(shape: Fresh) -> PreTrainedConfig:
    """Return the config of a fresh model, of which nothing is made."""
    return _config(shape, _tokenizer(shape))


def spelled_calls(tools: Sequence[str]) -> list[tuple[str, str]]:
    """Function and first text argument of every function that the tools offer, with their default parameters.

    Raises UserError if a tool is unknown, cannot be asked, or offers a function without a text argument.
    """
    return [_spelled(name, function) for name, offered in functions_of(tools, {}).items() for function in offered]


def _spelled(tool: str, function: ToolFunction) -> tuple[str, str]:
    arguments = function.parameters.get("properties", {})
    text = next((name for name, schema in arguments.items() if schema.get("type") == "string"), None)
    if text is None:
        raise UserError(f"model.fresh.tools names {tool}, whose function {function.name} takes no text: leave it out.")
    return function.name, text


def _initialised(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """Return a model with random weights from `seed`; the caller's random state is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = model_class_of(config)(config)
        return model


def _tokenizer(shape: Fresh) -> PreTrainedTokenizerBase:
    calls = [*spelled_calls(shape.tools), *shape.calls.items()]
    return character_tokenizer(shape.max_position_embeddings, calls, pictures=shape.takes_pictures)


def _config(shape: Fresh, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    if shape.takes_pictures:
        return config_with_pictures(shape, tokenizer)
    return transformers.Qwen2Config(**_text(shape, tokenizer))


def config_with_pictures(shape: Fresh, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """Return the config of the family that `shape.vision` names."""
    config, text, vision = {
        "qwen2_5_vl": (transformers.Qwen2_5_VLConfig, _text_of_qwen2_5, _vision_of_qwen2_5),
        "qwen3_vl": (transformers.Qwen3VLConfig, _text_of_qwen3, _vision_of_qwen3),
    }[shape.vision.family]
    return config(
        text_config=_text(shape, tokenizer) | text(shape),
        vision_config=_vision(shape) | vision(shape),
        tie_word_embeddings=True,
        **_token_ids(tokenizer),
    )


def _token_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    names = {
        "image_token_id": PICTURE,
        "video_token_id": VIDEO,
        "vision_start_token_id": PICTURE_START,
        "vision_end_token_id": PICTURE_END,
    }
    return {key: tokenizer.convert_tokens_to_ids(token) for key, token in names.items()}


def _text(shape: Fresh, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _text_of_qwen2_5(shape: Fresh) -> dict[str, Any]:
    half = _head_width(shape) // 2
    each = half * 3 // 8  # 16, 24, 24 of the published models' 64
    return {"rope_parameters": _rope([half - 2 * each, each, each])}


def _text_of_qwen3(shape: Fresh) -> dict[str, Any]:
    half = _head_width(shape) // 2
    each = half * 5 // 16  # 24, 20, 20 of 64
    return {
        "rope_parameters": _rope([half - 2 * each, each, each]) | {"mrope_interleaved": True},
        "head_dim": _head_width(shape),
    }


def _rope(section: list[int]) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": ROPE_THETA, "mrope_section": section}


def _head_width(shape: Fresh) -> int:
    return shape.hidden_size // shape.num_attention_heads


def _vision(shape: Fresh) -> dict[str, Any]:
    vision = shape.vision
    return {
        "depth": vision.depth,
        "hidden_size": vision.hidden_size,
        "intermediate_size": vision.intermediate_size,
        "num_heads": vision.num_heads,
        "patch_size": vision.patch_size,
        "spatial_merge_size": MERGED,
        "out_hidden_size": shape.hidden_size,
    }


def _vision_of_qwen2_5(shape: Fresh) -> dict[str, Any]:
    last = shape.vision.depth - 1
    whole = [layer for layer in range(shape.vision.depth) if (last - layer) % 2 == 0]
    return {"window_size": WINDOW * shape.vision.patch_size, "fullatt_block_indexes": whole}


def _vision_of_qwen3(shape: Fresh) -> dict[str, Any]:
    tapped = sorted({0, shape.vision.depth // 2})[: shape.num_hidden_layers]
    return {"num_position_embeddings": POSITIONS, "deepstack_visual_indexes": tapped}


def save_preprocessor(folder: Path, vision: Vision, max_pixels: int | None) -> None:
    """preprocessor_config.json in the layout of the published models, from which server and trainer read the same limits."""
    smallest = smallest_picture(vision.patch_size)
    largest = FRESH_TOKENS * smallest if max_pixels is None else max_pixels
    config = {
        "min_pixels": min(4 * smallest, largest),
        "max_pixels": largest,
        "patch_size": vision.patch_size,
        "temporal_patch_size": 2,
        "merge_size": MERGED,
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor" if vision.family == "qwen2_5_vl" else "Qwen3VLProcessor",
    }
    write_json(folder / PREPROCESSOR, config | (OPENAI_CLIP if vision.family == "qwen2_5_vl" else HALF))
