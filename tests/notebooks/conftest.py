"""A made-up experiment in the results layout, under the name that the notebook uses."""

import shutil
from pathlib import Path

import pytest
from tests.report.synthetic import make_experiment

NAME = "arithmetic_tiny"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project's folder: two seeds, twelve steps, base and trained scored on 40 problems."""
    make_experiment(tmp_path / "made", seeds=(0, 1))
    shutil.copytree(tmp_path / "made/results/tiny", tmp_path / "results" / NAME / "runs")
    return tmp_path
