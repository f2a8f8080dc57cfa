"""Two clones that have run the same tiny experiment to its end: one by Snakemake, one by DVC."""

from pathlib import Path

import pytest
from tests.workflow import clones


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(the clone that `snakemake --cores all target` ran in, the clone that `dvc repro` ran in)."""
    by_snakemake = clones.clone(tmp_path_factory.mktemp("by_snakemake"))
    by_dvc = clones.clone(tmp_path_factory.mktemp("by_dvc"))
    running = [
        (by_snakemake, clones.start(by_snakemake, "snakemake", "--cores", "all", "target")),
        (by_dvc, clones.start(by_dvc, "dvc", "repro")),
    ]
    for folder, process in running:
        assert process.wait(timeout=900) == 0, (folder / "output.txt").read_text()[-6000:]
    return by_snakemake, by_dvc
