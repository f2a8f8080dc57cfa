"""The byte tokenizer of a fresh model, as it is and as every loader reads it back."""

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dagrpo.models.fresh import make_fresh
from dagrpo.models.tokenizer import SPECIAL_TOKENS, character_tokenizer
from dagrpo.params.model import Fresh

TOKENIZER = character_tokenizer(256)
PRINTABLE = st.text(st.sampled_from([chr(code) for code in range(0x20, 0x7F)] + ["\n"]))
CONVERSATION = [
    {"role": "user", "content": "1 + 2 = ?"},
    {"role": "assistant", "content": "#### 3"},
    {"role": "user", "content": "Sure?"},
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """The tokenizer as transformers loads it from a model folder."""
    import torch

    folder = tmp_path_factory.mktemp("fresh") / "model"
    make_fresh(folder, Fresh(hidden_size=8, num_hidden_layers=1, intermediate_size=8), torch.float32)
    return AutoTokenizer.from_pretrained(folder)


@given(PRINTABLE)
def test_printable_ascii_comes_back_exactly(loaded: PreTrainedTokenizerBase, text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
    assert loaded.encode(text) == TOKENIZER.encode(text)
    assert loaded.decode(loaded.encode(text)) == text


def test_a_character_of_ascii_is_one_token() -> None:
    assert len(TOKENIZER.encode(string.printable)) == len(string.printable)


def test_other_alphabets_come_back_too() -> None:
    text = "50\u20ac \u00d7 2 \u2212 \u4e00 \U0001f600"
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_the_file_alone_gives_the_same_tokens(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    alone = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert alone.encode("Tom's 3 + 4 = 7\n\n#### 7").ids == TOKENIZER.encode("Tom's 3 + 4 = 7\n\n#### 7")


def test_special_tokens_are_the_first_four_and_single() -> None:
    assert [TOKENIZER.encode(token) for token in SPECIAL_TOKENS] == [[0], [1], [2], [3]]
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id) == (0, 3)
    assert len(TOKENIZER) == 260


def test_a_conversation_is_rendered_turn_by_turn(loaded: PreTrainedTokenizerBase) -> None:
    text = loaded.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    assert text == ("<|user|>1 + 2 = ?<|end|><|assistant|>#### 3<|end|><|user|>Sure?<|end|><|assistant|>")
    assert loaded.decode(loaded.encode(text)) == text


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    shorter = TOKENIZER.apply_chat_template(CONVERSATION[:1], tokenize=False, add_generation_prompt=True)
    assert TOKENIZER.apply_chat_template(CONVERSATION, tokenize=False).startswith(shorter)


def test_a_role_that_is_not_known_is_refused() -> None:
    with pytest.raises(Exception, match="knows the roles user and assistant, not tool"):
        TOKENIZER.apply_chat_template([{"role": "tool", "content": ""}], tokenize=False)
