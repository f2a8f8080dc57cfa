"""The commands that the pages show work as they stand, one after the other, in a project where the experiment has been run."""

import shutil
import time
from pathlib import Path

import pytest
from tests.docs.shown import RUN
from tests.pipeline.snakemake import clones

# The pages speak of the experiment that the project comes with; here is a smaller one.
HERE = {
    "dagrpo use examples/own_task": "PYTHONPATH=src:examples/own_task dagrpo use examples/own_task",
    "arithmetic_tiny-gspo": f"{clones.NAME}-gspo",
    "results/arithmetic_tiny": f"results/{clones.NAME}",
    "models/arithmetic_tiny": f"models/{clones.NAME}",
    "show arithmetic_tiny": f"show {clones.NAME}",
    "status arithmetic_tiny": f"status {clones.NAME}",
    "verify arithmetic_tiny": f"verify {clones.NAME}",
    "crate arithmetic_tiny": f"crate {clones.NAME}",
    "reproduce arithmetic_tiny": f"reproduce {clones.NAME}",
    "publish arithmetic_tiny": f"publish {clones.NAME}",
    "replay arithmetic_tiny": f"replay {clones.NAME}",
    "power arithmetic_tiny": f"power {clones.NAME}",
    "compare arithmetic_tiny": f"compare {clones.NAME}",
    "seed_0": clones.RUN.name,
    "--step 10": f"--step {clones.STEPS}",
    "3,17": f"3,{clones.STEPS}",
    '"48+44"': '"+"',
}
COMPLETION = '{"completion": "#### 72", "ground_truth": "72"}\n'


@pytest.mark.dag
@pytest.mark.nightly
def test_commands_that_pages_show_end_well(run_by_snakemake: Path, tmp_path: Path) -> None:
    folder = clones.copied(run_by_snakemake, tmp_path / "clone")
    shutil.copytree(folder / f"results/{clones.NAME}", folder / f"results/{clones.NAME}-gspo")
    (folder / "completions.jsonl").write_text(COMPLETION)
    for command in RUN:
        began = time.monotonic()
        clones.run(folder, "bash", "-c", _here(command) + (" --force" if "dagrpo use" in command else ""))
        print(f"{time.monotonic() - began:6.1f} s  {command}")


def _here(command: str) -> str:
    for shown, here in HERE.items():
        command = command.replace(shown, here)
    return command
