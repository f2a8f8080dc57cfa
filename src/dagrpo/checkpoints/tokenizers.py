"""Tokenizer of a model folder, without torch if possible.

Importing torch costs seconds and half a gigabyte.
"""

from pathlib import Path

from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.utils.files import read_object

_QWEN2 = frozenset({"Qwen2Tokenizer", "Qwen2TokenizerFast"})
_MODELS = frozenset({"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe"})


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load a checkpoint folder's tokenizer as AutoTokenizer does, from the folder alone. Raises UserError if its files are damaged."""
    try:
        return _load_tokenizer(folder)
    except (UserError, ImportError, MemoryError):
        raise
    except Exception as error:
        reason = one_line(str(error), 200)
        raise UserError(f"{folder} has no tokenizer that can be read ({reason}): restore its files.") from error


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    config, tokenizer_config = folder / "config.json", folder / "tokenizer_config.json"
    if config.is_file() and tokenizer_config.is_file():
        known = read_object(config).get("model_type") in _MODELS
        if known and read_object(tokenizer_config).get("tokenizer_class") in _QWEN2:
            return Qwen2Tokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    from transformers import AutoTokenizer  # imports torch

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
