"""Tiny models with random weights, which learn on a CPU in minutes.

A Qwen2, or a Qwen-VL if a vision tower is asked for. Initialised as in transformers (normal, std 0.02). Not pretrained.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedTokenizerBase

from dagrpo.checkpoints.folder import new_checkpoint
from dagrpo.checkpoints.manifest import Manifest
from dagrpo.checkpoints.modelling import PreTrainedConfig, PreTrainedModel
from dagrpo.checkpoints.modules import model_class_of, state_of
from dagrpo.checkpoints.tensors import StateTensors, total_bytes
from dagrpo.core.errors import UserError
from dagrpo.models.config import Fresh
from dagrpo.models.folder import finish, save_config, save_tokenizer
from dagrpo.models.fresh_vision import config_with_pictures, save_preprocessor
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.tools import ToolFunction, functions_of


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
    return config_with_pictures(shape, tokenizer) if shape.takes_pictures else _config_of_text(shape, tokenizer)


def _config_of_text(shape: Fresh, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    return transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.max_position_embeddings,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
