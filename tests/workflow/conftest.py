"""The tiny experiment, run to its end once: by Snakemake in one clone, by DVC, on a single core, in another."""

import os
from pathlib import Path

import pytest
from filelock import FileLock
from tests.workflow import clones


@pytest.fixture(scope="session")
def run_by_snakemake(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The clone that `snakemake --cores all target` ran in. All workers of pytest-xdist share it: copy it to change it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "run_by_snakemake"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            clones.clone(folder)
            clones.run(folder, "env", "DAGRPO_TRACKING=on", "snakemake", "--cores", "2", "target", timeout=900)
    return folder


@pytest.fixture(scope="session")
def finished(run_by_snakemake: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(a copy of the clone that Snakemake ran in, the clone that `dvc repro` ran in)"""
    by_snakemake = clones.copied(run_by_snakemake, tmp_path_factory.mktemp("by_snakemake") / "clone")
    by_dvc = clones.clone(tmp_path_factory.mktemp("by_dvc"))
    core = str(min(os.sched_getaffinity(0)))  # on one alone, where --cores all is 1: no byte depends on their number
    clones.run(by_dvc, "taskset", "-c", core, "dvc", "repro", timeout=900)
    return by_snakemake, by_dvc
