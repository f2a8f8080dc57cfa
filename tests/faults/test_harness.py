"""The harness notices what it is there to notice."""

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.faults import said
from tests.faults.aftermath import Witness, orphans, other_bytes
from tests.faults.aims import Aim, Shot
from tests.pipeline.snakemake import clones

from dagrpo.tracking.attempt import FOLDER
from dagrpo.utils.files import write_json

SLEEP = "import time; time.sleep(60)"


def _sleeping(folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    """A process of a clone, which looks like another one to whoever reads its command line."""
    return subprocess.Popen([sys.executable, "-c", SLEEP, *words], cwd=folder)


def test_a_process_that_outlives_its_run_is_told_and_killed(tmp_path: Path) -> None:
    process = _sleeping(tmp_path, "left")
    (line,) = orphans(tmp_path, seconds=0.1)
    assert "left" in line
    assert process.wait(timeout=10) != 0
    assert orphans(tmp_path, seconds=0.1) == []


def test_other_bytes_missing_files_and_half_made_ones_are_told(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "same").write_text("1")
    (results / "changed").write_text("1")
    expected = clones.outputs(tmp_path) | {"results/gone": "0"}
    (results / "changed").write_text("2")
    (results / ".scores.json.x.part").write_text("")
    assert other_bytes(expected, tmp_path) == [
        "results/gone is missing",
        "results/changed has other bytes",
        "results/.scores.json.x.part is left",
    ]


def test_a_run_that_mlflow_lost_or_shows_as_running_is_told(tmp_path: Path) -> None:
    for key in ("a", "b"):
        write_json(tmp_path / f"results/tiny/{key}/provenance.json", {"key": key})
    write_json(tmp_path / FOLDER / "1-score-c.json", {})
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("create table tags (key text, value text)")
        database.execute("create table runs (name text, status text)")
        database.execute("insert into tags values ('key', 'a')")
        database.execute("insert into runs values ('train', 'RUNNING')")
        database.commit()
    lost = ["MLflow has lost results/tiny/b/provenance.json", "MLflow shows train as RUNNING", "1-score-c.json is left"]
    assert Witness(tmp_path).lost() == lost


def test_a_file_in_memory_that_a_process_leaves_is_told(tmp_path: Path) -> None:
    with Path(f"/dev/shm/dagrpo-test-{tmp_path.parent.name}-{tmp_path.name}").open("w") as file:
        process = _sleeping(tmp_path, "--model-path", file.name, 'print("/dev/shm")')
        witness = Witness(tmp_path)
        witness.look()
        process.kill()
        process.wait()
        assert witness.left_outside() == [f"{file.name} is left"]
        Path(file.name).unlink()
        assert witness.left_outside() == []


def test_a_traceback_and_a_long_sentence_are_told() -> None:
    assert said.faults_of("mended by x", "panel") == []
    assert said.faults_of("x" * 501, "Traceback (most recent call last):\n  File\nOSError: full\n") == [
        "a traceback is shown: OSError: full",
        "the sentence has 501 characters",
    ]


def test_an_aim_fires_after_a_file_is_written_again_and_not_before(tmp_path: Path) -> None:
    aim = Aim(name="a state", files=(".state/tiny-*/step_*",), within=0.0)
    (tmp_path / ".state/tiny-a").mkdir(parents=True)
    (tmp_path / ".state/tiny-a/step_1").touch()
    shot = Shot(aim, tmp_path, random.Random(0))
    assert not shot.is_due()
    (tmp_path / ".state/tiny-a/step_2").touch()
    assert shot.is_due()
    assert not shot.is_in_vain()
