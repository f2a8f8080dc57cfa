"""The run without SLURM, with which those through it are compared, where a SLURM can be started at all."""

import pytest
from tests.pipeline.conftest import run_by_snakemake as run_by_snakemake
from tests.slurm import cluster


@pytest.fixture(scope="session", autouse=True)
def _require_slurm() -> None:
    """Skip before `run_by_snakemake`, a fixture of the session too, trains for minutes."""
    missing = cluster.what_is_missing()
    if missing:
        pytest.skip(missing)
