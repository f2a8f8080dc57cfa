"""The run without SLURM, with which those through it are compared."""

from tests.pipeline.conftest import run_by_snakemake as run_by_snakemake
