"""Jobs that need a GPU share the machine's: Snakemake counts them, and starts no more jobs than there are."""

import os
import re
from pathlib import Path

import pytest
from tests.pipeline.snakemake import clones

pytestmark = [pytest.mark.dag, pytest.mark.nightly]


def test_two_seeds_on_one_gpu_are_trained_one_after_the_other(
    run_by_snakemake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-smi is played; torch finds no GPU and computes on the CPU, which makes no difference to who waits."""
    folder = clones.copied(run_by_snakemake, tmp_path / "clone")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho 0\n")
    (programs / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{programs}")
    params = folder / "params.yaml"
    params.write_text(params.read_text().replace("seeds: [3]", "seeds: [3, 4]").replace("steps: 90", "steps: 1"))
    targets = [f"results/{clones.NAME}/runs/seed_{seed}/sft/manifest.json" for seed in (3, 4)]
    output = clones.run(folder, "snakemake", "--cores", "8", "--verbose", "--", *targets)
    free = [int(number) for number in re.findall(r"'gpu': (\d+)", output)]
    assert free, "Snakemake does not count GPUs"
    assert set(free) <= {0, 1}
    started_together = re.findall(r"Execute (\d+) jobs", output)
    assert started_together == ["1", "1"], "each seed's sft by itself"
