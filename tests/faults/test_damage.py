"""A damaged file is made again, or refused with a remedy that works: never taken for what it was."""

import os
import random
import re
import shutil
from pathlib import Path

import pytest
from tests.faults import damages
from tests.faults.conftest import Copy
from tests.faults.damages import SCORES
from tests.faults.tally import Tally
from tests.faults.whole import number_of, only_whole
from tests.pipeline.snakemake.clones import RUN

pytestmark = [pytest.mark.dag, pytest.mark.nightly]
COMPLETIONS = f"{RUN}/eval/arithmetic/trained/completions.parquet"
EXPORTED = f"{RUN}/exported/manifest.json"
BOUNDED = [(COMPLETIONS, SCORES, "a bit flipped"), (f"{RUN}/policy/manifest.json", EXPORTED, "truncated")]
SECONDS_PER_DAMAGE = 20  # on two idle cores; for the estimate alone


@pytest.mark.parametrize(("file", "target", "way"), BOUNDED)
def test_what_a_stage_reads_is_damaged(
    copy: Copy,
    undisturbed: Path,
    expected: dict[str, str],
    tally: Tally,
    faults_seed: int,
    file: str,
    target: str,
    way: str,
) -> None:
    place = next(place for place in damages.places(undisturbed) if (place.file, place.target) == (file, target))
    fault = tally.add(damages.cause(copy("damaged"), place, way, faults_seed, expected))
    assert fault.differences == ()


@only_whole
def test_every_kind_of_file_is_damaged_in_every_way(
    copy: Copy, undisturbed: Path, expected: dict[str, str], tally: Tally, faults_seed: int
) -> None:
    only = re.compile(os.environ.get("DAGRPO_FAULTS_ONLY", ""))  # of the places, by the file or what is made of it
    places = [place for place in damages.places(undisturbed) if only.search(f"{place.file} {place.target}")]
    planned = [(place, way) for place in places for way in damages.WAYS]
    random.Random(faults_seed).shuffle(planned)
    planned = planned[: number_of("DAMAGES", 200)]
    print(
        f"{len(planned)} damages: about {len(planned) * SECONDS_PER_DAMAGE // 60} minutes on two idle cores", flush=True
    )
    for number, (place, way) in enumerate(planned):
        folder = copy(f"damaged_{number}")
        if not tally.add(damages.cause(folder, place, way, faults_seed + number, expected)).differences:
            shutil.rmtree(folder)
    assert tally.differences("damage") == []
