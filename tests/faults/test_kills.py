"""Processes of every kind are killed at random times: the same command goes on, and ends with the same bytes."""

import shutil

import pytest
from tests.faults.conftest import Copy
from tests.faults.kills import Road
from tests.faults.tally import Tally
from tests.faults.whole import number_of, only_whole
from tests.workflow.clones import RUN

pytestmark = pytest.mark.dag
KILLS_ON_A_ROAD = 8
SECONDS_PER_KILL = 25  # on two idle cores; for the estimate alone
TRAINED = f"{RUN}/policy/manifest.json"


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
    road = Road(folder=folder, command=command, expected=expected, seed=faults_seed, kills=2, pause=8, tally=tally)
    road.walk()
    assert road.differences == []


@only_whole
def test_a_whole_run_that_is_killed_ends_with_the_same_bytes(
    emptied: Copy, expected: dict[str, str], tally: Tally, faults_seed: int
) -> None:
    kills, number = number_of("KILLS", 200), 0
    print(f"{kills} kills: about {kills * SECONDS_PER_KILL // 60} minutes on two idle cores", flush=True)
    command = ("snakemake", "--cores", "all", "target")
    while kills > 0:
        number += 1
        folder = emptied(f"killed_{number}")
        road = Road(
            folder=folder,
            command=command,
            expected=expected,
            seed=faults_seed + number,
            kills=min(kills, KILLS_ON_A_ROAD),
            pause=number_of("PAUSE", 8),
            tally=tally,
        )
        kills -= max(road.walk(), 1)
        if not road.differences:
            shutil.rmtree(folder)
    assert tally.differences("end of a killed run") == []
