"""Processes of every kind are killed, in every phase: the same command goes on, and ends with the same bytes."""

import os
import shutil
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest
from tests.faults.conftest import Copy, emptied_copy
from tests.faults.experiments import EXPERIMENTS, Experiment, undisturbed_run
from tests.faults.kills import Road
from tests.faults.tally import Tally
from tests.faults.whole import number_of, only_whole
from tests.pipeline.snakemake import clones
from tests.pipeline.snakemake.clones import RUN

pytestmark = [pytest.mark.dag, pytest.mark.nightly]
KILLS_ON_A_ROAD = 20
SECONDS_PER_KILL = 20  # on two idle cores; for the estimate alone
TRAINED = f"{RUN}/policy/manifest.json"
SNAKEMAKE, DVC = ("snakemake", "--cores", "all", "target"), ("dvc", "repro")
# Each stage under DVC waits for a Snakemake of its own, which costs time; five, so that all four experiments meet each.
ENGINES = (SNAKEMAKE, SNAKEMAKE, SNAKEMAKE, SNAKEMAKE, DVC)
Undisturbed = Callable[[Experiment], Path]


def test_training_that_is_killed_ends_with_the_same_bytes(
    copy: Copy, expected: dict[str, str], tally: Tally, faults_seed: int
) -> None:
    """The bounded part: a few kills, on the way from the initial policy to the trained one."""
    folder = copy("trained_again")
    shutil.rmtree(folder / RUN / "policy")
    shutil.rmtree(folder / RUN / "rollouts")
    for path in (folder / RUN / "metrics.parquet", *(folder / ".state").glob("tiny-*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    command = ("snakemake", "--cores", "all", TRAINED)
    road = Road(folder=folder, command=command, expected=expected, seed=faults_seed, kills=2, tally=tally)
    road.walk()
    assert road.differences == []


@pytest.fixture(scope="session")
def undisturbed_run_of(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A clone in which an experiment has run to its end. DAGRPO_FAULTS_KEPT names a folder in which they are kept."""
    kept = os.environ.get("DAGRPO_FAULTS_KEPT")
    base = Path(kept) if kept else tmp_path_factory.mktemp("undisturbed")

    def run(experiment: Experiment) -> Path:
        folder = base / experiment.name.replace(" ", "_")
        if not folder.exists():
            undisturbed_run(folder.with_suffix(".part"), experiment).rename(folder)
        return folder

    return run


@only_whole
def test_a_whole_run_that_is_killed_ends_with_the_same_bytes(
    undisturbed_run_of: Undisturbed, tmp_path: Path, tally: Tally, faults_seed: int
) -> None:
    kills, number = number_of("KILLS", 200), 0
    print(f"{kills} kills: about {kills * SECONDS_PER_KILL // 60} minutes on two idle cores", flush=True)
    experiments, engines = cycle(EXPERIMENTS), cycle(ENGINES)
    while kills > 0:
        number += 1
        undisturbed = undisturbed_run_of(next(experiments))
        road = Road(
            folder=emptied_copy(undisturbed, tmp_path / f"killed_{number}"),
            command=next(engines),
            expected=clones.outputs(undisturbed),
            seed=faults_seed + number,
            kills=min(kills, KILLS_ON_A_ROAD),
            tally=tally,
        )
        kills -= max(road.walk(), 1)
        print("", *tally.table(), sep="\n", flush=True)
        if not road.differences:
            shutil.rmtree(road.folder)
    assert tally.differences("end of a killed run") == []
