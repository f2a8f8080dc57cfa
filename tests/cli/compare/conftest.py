"""Two made-up experiments with scores, side by side in results/: `one`, and `two`, whose policy is better."""

import shutil
from pathlib import Path

import pytest
from tests.report.synthetic import make_experiment

ACCURACY = {"one": 0.3, "two": 0.95}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder results/ of the working directory. The problems are the same ones, in the same order."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").touch()
    for name, accuracy in ACCURACY.items():
        make_experiment(tmp_path / name, seeds=(0, 1), trained_accuracy=accuracy)
        shutil.copytree(tmp_path / name / "results/tiny", tmp_path / "results" / name / "runs")
    return tmp_path / "results"
