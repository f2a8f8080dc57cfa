"""Vision-language models to the trainer's format and back: language and vision parts, image processor included."""

import json
from pathlib import Path
from typing import Literal

import pytest
import torch

from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.modules import build_model, state_of
from dagrpo.checkpoints.source import open_checkpoint, open_tensors
from dagrpo.models.config import Fresh, Model, Vision
from dagrpo.models.make import make_model
from dagrpo.utils.files import sha256_of


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def vision_language(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model in bfloat16."""
    family: Literal["qwen2_5_vl", "qwen3_vl"] = request.param
    folder = tmp_path_factory.mktemp("vision_language") / "model"
    shape = Fresh(
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=32,
        vision=Vision(family=family, depth=2, hidden_size=16, intermediate_size=32, num_heads=2),
    )
    make_model(folder, Model(fresh=shape, dtype="bfloat16", max_pixels=28 * 28 * 32))
    return folder


def test_both_parts_make_the_round_trip_byte_for_byte(vision_language: Path, tmp_path: Path) -> None:
    write_as("dcp", open_checkpoint(vision_language), tmp_path / "dcp", 1 << 30)
    write_as("huggingface", open_checkpoint(tmp_path / "dcp"), tmp_path / "back", 1 << 30)
    names = set(open_tensors(tmp_path / "back").specs)
    assert any("visual." in name for name in names)
    assert any("layers." in name and "visual" not in name for name in names)
    files = [path.name for path in vision_language.iterdir() if path.name != "manifest.json"]
    assert {"model.safetensors", "preprocessor_config.json", "tokenizer.json", "chat_template.jinja"} <= set(files)
    for name in files:
        assert sha256_of(tmp_path / "back" / name) == sha256_of(vision_language / name), name


def test_a_model_that_is_built_from_a_checkpoint_has_all_its_tensors(vision_language: Path) -> None:
    tensors = open_tensors(vision_language)
    state = {name: tensors.read(name) for name in tensors.specs}
    model = build_model(vision_language, state, torch.bfloat16)
    assert model.config.model_type == json.loads((vision_language / "config.json").read_text())["model_type"]
    again = state_of(model)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)
