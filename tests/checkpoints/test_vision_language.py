"""Qwen2.5-VL to the trainer's format and back: language and vision parts, image processor included."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.source import open_source, open_tensors
from dagrpo.files import sha256_of
from dagrpo.models.tokenizer import character_tokenizer

LANGUAGE: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 260,
    "max_position_embeddings": 64,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]},
}
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 16,
    "fullatt_block_indexes": [1],
}
PREPROCESSOR = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}


@pytest.fixture(scope="module")
def vision_language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2.5-VL in bfloat16, as transformers saves it."""
    folder = tmp_path_factory.mktemp("vision_language") / "model"
    config = Qwen2_5_VLConfig(text_config=LANGUAGE, vision_config=VISION, tie_word_embeddings=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2_5_VLForConditionalGeneration(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    character_tokenizer(64).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return folder


def test_both_parts_make_the_round_trip_byte_for_byte(vision_language: Path, tmp_path: Path) -> None:
    write_as("dcp", open_source(vision_language), tmp_path / "dcp", 1 << 30)
    write_as("huggingface", open_source(tmp_path / "dcp"), tmp_path / "back", 1 << 30)
    names = set(open_tensors(tmp_path / "back").specs)
    assert any("visual." in name for name in names)
    assert any("layers." in name and "visual" not in name for name in names)
    for name in ("model.safetensors", "preprocessor_config.json", "tokenizer.json", "config.json"):
        assert sha256_of(tmp_path / "back" / name) == sha256_of(vision_language / name), name
