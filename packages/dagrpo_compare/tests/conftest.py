"""The made-up project of tests/pipeline/changes, and experiments with scores side by side in results/."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.pipeline.changes.conftest import made_up
from tests.report.synthetic import make_experiment

__all__ = ["made_up"]
Scored = Callable[..., Path]


@pytest.fixture(scope="session")
def _make_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float, int], Path]:
    """Make the runs of an experiment whose trained policy has this accuracy, once for each accuracy and number of seeds."""

    @cache
    def make(accuracy: float, seeds: int) -> Path:
        folder = tmp_path_factory.mktemp("scored")
        make_experiment(folder, seeds=tuple(range(seeds)), trained_accuracy=accuracy)
        return folder / "results/tiny"

    return make


@pytest.fixture
def scored(_make_runs: Callable[[float, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scored:
    """Put an experiment with scores into results/ of a new working folder; the problems are the same ones each time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").touch()

    def put(name: str, accuracy: float, seeds: int = 2) -> Path:
        return Path(shutil.copytree(_make_runs(accuracy, seeds), tmp_path / "results" / name / "runs"))

    return put
