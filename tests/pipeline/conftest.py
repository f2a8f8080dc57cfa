"""The tiny experiment, run by Snakemake; and run by DVC alone, stopped on the way."""

import os
import random
import signal
from pathlib import Path

import pytest
from filelock import FileLock
from tests.pipeline.snakemake import clones

# Words on the command lines of the trainer, of its server and of Snakemake; the last one ends the command.
TRAINER, SERVER, SNAKEMAKE = ("/train-", "--attempt"), ("sglang.launch_server",), ("bin/snakemake",)


@pytest.fixture(scope="session")
def run_by_snakemake(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The clone that `snakemake --cores all target` ran in. All workers of pytest-xdist share it: copy it to change it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "run_by_snakemake"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            clones.clone(folder)
            clones.run(folder, "snakemake", "--cores", "2", "target")
    return folder


@pytest.fixture(scope="session")
def finished(run_by_snakemake: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a copy of the clone that Snakemake ran in, and the clone that `dvc repro` ran in, stopped on the way."""
    by_snakemake = clones.copied(run_by_snakemake, tmp_path_factory.mktemp("by_snakemake") / "clone")
    by_dvc = clones.clone(tmp_path_factory.mktemp("by_dvc"))
    core = str(min(os.sched_getaffinity(0)))  # on one alone, where --cores all is 1: no byte depends on their number
    command = ("taskset", "-c", core, "dvc", "repro")
    _stopped_on_the_way(by_dvc, command)
    clones.run(by_dvc, *command)
    return by_snakemake, by_dvc


def _stopped_on_the_way(folder: Path, command: tuple[str, ...]) -> None:
    """Kill the trainer or its server, then end the command by a kill of Snakemake or by Ctrl-C, each at a random step.

    Two steps are left after the last: one may end before a busy machine comes to send the signal.

    Every kind of process, in every phase, is killed by the nightly tests of faults.
    """
    chance = random.SystemRandom()
    first, last = sorted(chance.sample(range(3, clones.STEPS - 1), 2))
    victim, by_ctrl_c = chance.choice((TRAINER, SERVER)), chance.choice((True, False))
    print(f"{victim} killed after step {first}, and {'Ctrl-C' if by_ctrl_c else 'Snakemake killed'} after step {last}")
    process = clones.start(folder, *command)
    clones.wait_for_step(folder, first)
    clones.kill(folder, *victim)
    clones.wait_for_step(folder, last)
    if by_ctrl_c:
        os.killpg(process.pid, signal.SIGINT)
    else:
        clones.kill(folder, *SNAKEMAKE)
    assert process.wait(timeout=120) != 0
    clones.require_no_process(folder)
    assert not (folder / clones.RUN / "policy/manifest.json").exists()
    (folder / "output.txt").unlink()
