"""Files common to all model folders: configs, tokenizer and origin."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from dagrpo.checkpoints import store
from dagrpo.checkpoints.folder import CONFIG, require_chat_template, require_config, require_tokenizer, set_config_dtype
from dagrpo.checkpoints.manifest import Manifest
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.utils.files import read_object, write_json

# What transformers 5 notes about this process rather than about the tokenizer.
_NOT_OF_THE_TOKENIZER = ("backend", "is_local", "local_files_only")
_PROBE = "Natalia sold 48/2 = <<48/2=24>>24 clips,  don't you think?\n#### 72"


def save_config(folder: Path, config: PreTrainedConfig, architecture: str) -> None:
    """config.json, and a generation_config.json with the tokens that begin, end and pad a sequence, no sampling."""
    config.architectures = [architecture]
    config.save_pretrained(folder)
    text = config.get_text_config()
    generation = GenerationConfig(
        bos_token_id=text.bos_token_id, eos_token_id=text.eos_token_id, pad_token_id=text.pad_token_id
    )
    generation.save_pretrained(folder)


def save_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja, beside the config.json that is there already."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = {key: value for key, value in read_object(path).items() if key not in _NOT_OF_THE_TOKENIZER}
    if config["tokenizer_class"] == "TokenizersBackend":  # transformers 4 knows the same class by another name
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(path, config)
    # transformers may choose the class by the model's type rather than by this file.
    if load_tokenizer(folder).encode(_PROBE) != tokenizer.encode(_PROBE):
        raise UserError(
            f"transformers reads the tokenizer of a {read_object(folder / CONFIG)['model_type']} model "
            "back as another one: choose another model."
        )


def finish(folder: Path, tensors: Tensors, dtype: torch.dtype, origin: Mapping[str, Any]) -> Manifest:
    """Add the weights, `origin.json` and the manifest to a folder that has everything else, after checking that."""
    require_config(folder)
    require_tokenizer(folder)
    require_chat_template(folder)
    set_config_dtype(folder, dtype)
    write_json(folder / "origin.json", origin)
    return store.finish(folder, "huggingface", tensors)
