"""A file that was damaged between two stages is found before it is used, and the same command makes it anew.

Damage here keeps the file's time and, where it can, its size.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.pipeline.snakemake import clones
from tests.pipeline.snakemake.clones import NAME, RUN

pytestmark = pytest.mark.dag
SCORES = RUN / "eval/arithmetic/trained/scores.parquet"
REPORT = Path(f"results/{NAME}/report/report.html")
TOKENIZER = Path(f"models/{NAME}/tiny_qwen2/tokenizer.json")


@pytest.fixture(scope="module")
def folder(run_by_snakemake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clones.copied(run_by_snakemake, tmp_path_factory.mktemp("damage") / "clone")


def _two_rows_cut(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.slice(0, table.num_rows - 2), path)


def _a_byte_flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _damaged(folder: Path, name: Path, damage: Callable[[Path], None]) -> None:
    before = (folder / name).stat()
    damage(folder / name)
    os.utime(folder / name, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.nightly
def test_two_rows_cut_from_a_parquet_are_made_again_before_the_report_reads_them(folder: Path) -> None:
    """Under Snakemake: the report is asked for anew, of scores that lost two rows."""
    whole = clones.outputs(folder)
    _damaged(folder, SCORES, _two_rows_cut)
    (folder / REPORT).unlink()
    clones.run(folder, "snakemake", "--cores", "all", "target")
    assert clones.outputs(folder) == whole
    _is_up_to_date(folder)


@pytest.mark.nightly
def test_a_flipped_byte_in_a_checkpoint_is_mended_by_the_same_command_of_dvc(folder: Path) -> None:
    command = ("dvc", "repro", f"prepare@{NAME}-arithmetic")
    whole, params = (folder / TOKENIZER).read_bytes(), folder / "params.yaml"
    _damaged(folder, TOKENIZER, _a_byte_flipped)
    text = params.read_text()
    params.write_text(text.replace("test: 12", "test: 13"))
    said = " ".join(clones.refused(folder, *command).split())
    assert f"{TOKENIZER} is damaged, or was changed after it was made" in said
    clones.run(folder, *command)
    assert (folder / TOKENIZER).read_bytes() == whole
    params.write_text(text)
    clones.run(folder, *command)
    _is_up_to_date(folder)


def _is_up_to_date(folder: Path) -> None:
    assert "Nothing to be done" in clones.run(folder, "snakemake", "-n", "target")
    assert "up to date" in clones.run(folder, "dvc", "status")
