"""A tiny model in a folder, and copies of it that a test may damage."""

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dagrpo.cli.application import app
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


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied Qwen2 in float32, one file of weights. Never changed."""
    folder = tmp_path_factory.mktemp("pristine") / "model"
    make_fresh(folder, SHAPE, torch.float32)
    return folder


@pytest.fixture
def model_folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def run_command(*arguments: object, code: int = 0) -> str:
    """Return what a command prints. Raises its UserError."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, ValueError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output
