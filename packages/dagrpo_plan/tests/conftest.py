"""Qwen3-0.6B by its published config.json, in a folder where the stage model would have put it; no weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from dagrpo.config.overlay import merged
from dagrpo.config.schema import Params, parse

REPOSITORY, REVISION = "Qwen/Qwen3-0.6B", "c1899de289a04d12100db370d81485cdf75e47ca"
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
    "rope_theta": 1_000_000,
    "rms_norm_eps": 1e-6,
}
OF_HUB = {
    "model": {"name": "qwen3", "source": "hub", "repository": REPOSITORY, "revision": REVISION},
    "sft": {"steps": 0},
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project that has the model's folder."""
    folder = tmp_path / "models/another/qwen3"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "origin.json").write_text(json.dumps({"repository": REPOSITORY, "revision": REVISION}))
    (tmp_path / "Snakefile").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def qwen3(*changes: dict[str, Any]) -> Params:
    """An experiment with Qwen3-0.6B."""
    return params_with(OF_HUB, *changes)


def params_with(*changes: dict[str, Any]) -> Params:
    """The defaults with some changes."""
    values = Params().model_dump()
    for change in changes:
        values = merged(values, change)
    return parse(values)
