"""Models from GGUF files: dequantized weights, tokenizer and chat template.

The weights keep the rounding of the file's quantization. GGUF is never written.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dagrpo.checkpoints.folder import new_checkpoint
from dagrpo.checkpoints.manifest import Manifest
from dagrpo.checkpoints.modules import no_progress_bars, require_all_loaded, state_of
from dagrpo.checkpoints.tensors import StateTensors, total_bytes
from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.models.chat_template import replace_chat_template
from dagrpo.models.config import OWN_TEMPLATE, place_of_gguf
from dagrpo.models.folder import finish, save_config, save_tokenizer
from dagrpo.utils.files import sha256_of

MOST_VALUES = 10_000_000  # in a file's description; a vocabulary of 260,000 tokens has two million
WITH_PICTURES = ("clip", "mllama", "cogvlm")  # GGUF's names; Qwen's have vl in them
# What transformers notes about the file; a checkpoint with it would be refused as a quantized one.
_NOT_OF_THE_MODEL = ("quantization_config", "_model_name_or_path")


def make_gguf(destination: Path, location: str, dtype: torch.dtype, chat_template: str = OWN_TEMPLATE) -> Manifest:
    """Write the model of a GGUF file, given by path or as package:<module>/<file>.

    chat_template: OWN_TEMPLATE, or one of ours.
    """
    path = gguf_path(location)
    model, tokenizer = _load(path, dtype)
    tensors = StateTensors(state_of(model))
    config = model.config
    for key in _NOT_OF_THE_MODEL:
        if hasattr(config, key):
            delattr(config, key)
    with new_checkpoint(destination, total_bytes(tensors)) as folder:
        save_config(folder, config, type(model).__name__)
        save_tokenizer(folder, tokenizer)
        origin = {"source": "gguf", "file": path.name, "sha256": sha256_of(path)}
        if chat_template != OWN_TEMPLATE:
            replace_chat_template(folder, chat_template)
            origin |= {"chat_template": chat_template}
        return finish(folder, tensors, dtype, origin)


def gguf_path(location: str) -> Path:
    """Return the file that `model.gguf` names. UserError: no such package or file, or not a GGUF file."""
    path = place_of_gguf(location)
    if not path.is_file():
        raise UserError(f"model.gguf names {location}, but there is no file {path}: correct the path.")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UserError(f"{path} is not a GGUF file (it does not begin with GGUF): give another in model.gguf.")
    return path


class _SoundReader(GGUFReader):  # type: ignore[misc]  # gguf has no types
    """Reader that refuses what lies beyond the file's end, which GGUFReader reads as nothing, count by count."""

    _values = 0

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        self._values += 1
        if self._values > MOST_VALUES:
            raise ValueError(f"its description has more than {MOST_VALUES} values")
        if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise ValueError("it ends before its last value or tensor")
        return super()._get(offset, dtype, count, override_order)


def _require_sound(path: Path) -> None:
    """Raise UserError for a vision-language model, of which GGUF has one part in a file; ValueError for a damaged file."""
    reader = _SoundReader(path)
    architecture = str(reader.fields["general.architecture"].contents())
    if "vl" in architecture or architecture in WITH_PICTURES:
        raise UserError(
            f"{path} is of the family {architecture}, a vision-language model of which GGUF has one part in a file: take the model "
            "from the hub (model.source: hub)."
        )
    layers = {tensor.name.split(".")[1] for tensor in reader.tensors if tensor.name.startswith("blk.")}
    stated = reader.fields[f"{architecture}.block_count"].contents()
    if stated != len(layers):
        raise ValueError(f"it states {stated} layers and holds tensors of {len(layers)}")


@contextmanager
def _opened(path: Path) -> Iterator[dict[str, Any]]:
    """Give the arguments with which transformers reads a sound GGUF file, and none beside it, such as code.

    Raises UserError for whatever fails within: transformers checks little of what a file says.
    """
    try:
        _require_sound(path)
        with TemporaryDirectory() as folder:
            Path(folder, path.name).symlink_to(path.resolve())
            yield {"pretrained_model_name_or_path": folder, "gguf_file": path.name, "local_files_only": True}
    except (UserError, ImportError):
        raise
    except Exception as error:  # the border to a foreign file
        reason = one_line(str(error) or type(error).__name__, 200)
        raise UserError(
            f"{path} cannot be read by transformers ({reason}): give another file in model.gguf."
        ) from error


def gguf_config(path: Path) -> PreTrainedConfig:
    """Return the config in a GGUF file, without reading its weights. Raises UserError if it is damaged."""
    with _opened(path) as where:
        config: PreTrainedConfig = AutoConfig.from_pretrained(**where, trust_remote_code=False)
        return config


def _load(path: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    with _opened(path) as where, no_progress_bars():
        model, report = AutoModelForCausalLM.from_pretrained(
            **where,
            dtype=dtype,
            output_loading_info=True,
            quantization_config=GgufConfig(dequantize=True),
            trust_remote_code=False,
        )
        tokenizer = AutoTokenizer.from_pretrained(**where, trust_remote_code=False)
    require_all_loaded(path, type(model).__name__, report)
    return model, tokenizer
