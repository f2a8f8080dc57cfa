"""A made-up experiment in the results layout, under the name that the notebook uses."""

import shutil
from pathlib import Path

import pytest
import torch
from tests.report.synthetic import make_experiment

from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh

NAME = "arithmetic_tiny"
SHAPE = Fresh(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    intermediate_size=32,
    max_position_embeddings=128,
)


@pytest.fixture(scope="session")
def _runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    make_experiment(folder, seeds=(0, 1))
    runs = folder / "results/tiny"
    make_fresh(runs / "seed_0/sft", SHAPE, torch.float32)
    make_fresh(runs / "seed_0/exported", SHAPE, torch.bfloat16)
    return runs


@pytest.fixture
def project(_runs: Path, tmp_path: Path) -> Path:
    """The project's folder: two seeds, twelve steps, base and trained scored on 40 problems, policies of one layer."""
    shutil.copytree(_runs, tmp_path / "results" / NAME / "runs")
    return tmp_path
