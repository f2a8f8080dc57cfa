"""Padding of the tokenizer that Megatron-LM reads: it leaves tokens of padding out of the loss."""

from pathlib import Path

import pytest

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.trainer.foreign.files import Inputs
from dagrpo_megatron.backend.running import padded_tokenizer


def inputs(folder: Path, padding: str) -> Inputs:
    """A tokenizer with this padding token, as the initial checkpoint."""
    tokenizer = character_tokenizer(128, pictures=True)
    tokenizer.pad_token = padding
    tokenizer.save_pretrained(folder)
    return Inputs(model=folder, rows=folder, prompts=())


def test_a_padding_token_that_ends_texts_is_replaced_by_another_special_one(tmp_path: Path) -> None:
    end = str(character_tokenizer(128).eos_token)
    folder = padded_tokenizer(inputs(tmp_path, end), tmp_path)
    tokenizer = load_tokenizer(folder)
    assert folder == tmp_path / "tokenizer"
    assert tokenizer.eos_token == end
    assert tokenizer.pad_token_id not in (None, tokenizer.eos_token_id)
    assert tokenizer.encode("1+2") == load_tokenizer(tmp_path).encode("1+2")
    assert padded_tokenizer(inputs(tmp_path, str(tokenizer.pad_token)), tmp_path) == tmp_path  # one of its own stays


def test_a_tokenizer_without_another_special_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(tmp_path, str(character_tokenizer(128).eos_token))
    end = load_tokenizer(tmp_path).eos_token_id
    monkeypatch.setattr(type(load_tokenizer(tmp_path)), "get_added_vocab", lambda self: {self.eos_token: end})
    with pytest.raises(UserError, match="no special token beside its end token"):
        padded_tokenizer(given, tmp_path)
