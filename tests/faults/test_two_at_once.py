"""Two commands in one folder at the same time: one does the work, the other waits or is refused in a sentence."""

import random
import time
from pathlib import Path

import pytest
from tests.faults import said
from tests.faults.aftermath import orphans, other_bytes
from tests.faults.conftest import Copy
from tests.faults.damages import SCORES
from tests.faults.tally import Fault, Tally
from tests.faults.whole import WHOLE, number_of
from tests.pipeline.snakemake import clones

pytestmark = [pytest.mark.dag, pytest.mark.nightly]
SNAKEMAKE = ("snakemake", "--cores", "all", SCORES)
DVC = ("dvc", "repro", "score@tiny-3-arithmetic-trained")
LONGEST_PAUSE = 6.0


def _two(folder: Path, commands: tuple[tuple[str, ...], ...], pause: float, expected: dict[str, str]) -> Fault:
    """Start two commands one after the other; whatever became of them, the first one once more brings the same bytes."""
    processes = []
    for command in commands:
        processes.append(clones.start(folder, *command))
        time.sleep(pause)
    codes = [process.wait(timeout=600) for process in processes]
    output = (folder / "output.txt").read_text()
    wrong = ["a traceback is shown"] if "Traceback" in output else []
    wrong += [] if 0 in codes else [f"both were refused: {output[-300:]}"]
    code, again = said.run(folder, commands[0])
    wrong += [] if code == 0 else [f"refused afterwards: {said.sentence_in(folder, again)}"]
    names = " and ".join(command[0] for command in commands)
    differences = (*wrong, *orphans(folder), *other_bytes(expected, folder))
    return Fault(kind="two at once", what=f"{names}, {pause:.2f} s apart", differences=differences)


def test_two_commands_at_once_end_with_the_same_bytes(
    copy: Copy, expected: dict[str, str], tally: Tally, faults_seed: int
) -> None:
    draw = random.Random(faults_seed)
    pairs = [(SNAKEMAKE, SNAKEMAKE), (SNAKEMAKE, DVC), (DVC, SNAKEMAKE), (DVC, DVC)]
    for number in range(number_of("PAIRS", 20) if WHOLE else 1):
        folder = copy(f"two_{number}")
        for name in ("scores.json", "scores.parquet", "scores.provenance.json"):
            (folder / SCORES).with_name(name).unlink()
        tally.add(_two(folder, pairs[number % 4], draw.uniform(0, LONGEST_PAUSE), expected))
    assert tally.differences("two at once") == []
