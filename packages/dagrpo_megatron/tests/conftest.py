"""A tiny model with a tokenizer, and property tests that no busy machine can fail."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh

SHAPE = Fresh(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    intermediate_size=32,
    max_position_embeddings=64,
)

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied Qwen2 in float32, one file of weights. Never changed."""
    folder = tmp_path_factory.mktemp("pristine") / "model"
    make_fresh(folder, SHAPE, torch.float32)
    return folder


@pytest.fixture
def damage() -> Callable[[Path], None]:
    """Cut a file to half its size."""

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return cut
