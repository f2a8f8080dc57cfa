"""A disk that becomes full at any write: a sentence, nothing half written, and the same bytes with room again."""

import random

import pytest
from tests.faults import disks
from tests.faults.conftest import Copy
from tests.faults.damages import SCORES
from tests.faults.tally import Tally
from tests.faults.whole import number_of, only_whole
from tests.namespaces import require_mounts

pytestmark = [pytest.mark.dag, pytest.mark.nightly, only_whole]
ALL_THAT_IS_WRITTEN = 12_000_000  # bytes, generously: with so much room free the run ends well


def test_a_disk_is_full_after_any_number_of_bytes(
    emptied: Copy, expected: dict[str, str], tally: Tally, faults_seed: int
) -> None:
    require_mounts()
    draw, clone = random.Random(faults_seed), emptied("clone")
    for _ in range(number_of("DISKS", 20)):
        tally.add(
            disks.cause(clone, draw.randrange(ALL_THAT_IS_WRITTEN), ("snakemake", "--cores", "all", "target"), expected)
        )
    assert tally.differences("full disk") == []


def test_a_disk_is_full_while_a_score_is_written(
    copy: Copy, expected: dict[str, str], tally: Tally, faults_seed: int
) -> None:
    require_mounts()
    clone = copy("clone")
    for name in ("scores.json", "scores.parquet", "scores.provenance.json"):
        (clone / SCORES).with_name(name).unlink()
    for free in (0, 4096, 8192, 16384, 32768, 65536):
        tally.add(disks.cause(clone, free, ("snakemake", "--cores", "all", SCORES), expected))
    assert tally.differences("full disk") == []
