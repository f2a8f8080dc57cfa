"""Tokenizer of a model folder, and a decoder of its tokens.

Without torch if possible: importing it costs seconds and half a gigabyte. The decoder needs no transformers either.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.utils.files import read_object, read_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Decode = Callable[[Sequence[int]], str]
_QWEN2 = frozenset({"Qwen2Tokenizer", "Qwen2TokenizerFast"})
_MODELS = frozenset({"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe"})


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """Load a checkpoint folder's tokenizer as AutoTokenizer does, from the folder alone. Raises UserError if its files are damaged."""
    try:
        return _load_tokenizer(folder)
    except (UserError, ImportError, MemoryError):
        raise
    except Exception as error:
        reason = one_line(str(error), 200)
        raise UserError(f"{folder} has no tokenizer that can be read ({reason}): restore its files.") from error


def _load_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    config, tokenizer_config = folder / "config.json", folder / "tokenizer_config.json"
    if config.is_file() and tokenizer_config.is_file():
        known = read_object(config).get("model_type") in _MODELS
        if known and read_object(tokenizer_config).get("tokenizer_class") in _QWEN2:
            from transformers import Qwen2Tokenizer

            return Qwen2Tokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    from transformers import AutoTokenizer  # imports torch

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def decoder_of(path: Path, remedy: str) -> Decode:
    """Return a decoder of tokens for a tokenizer.json. Raises UserError naming the file, and the remedy, if it cannot be read."""
    from tokenizers import Tokenizer

    text = read_text(path, remedy)
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001  the border to a file of others: its reader in Rust raises nothing more exact
        raise UserError(f"{path} cannot be read as a tokenizer ({one_line(str(error), 200)}): {remedy}.") from None

    def decode(token_ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(token_ids), skip_special_tokens=False))

    return decode
