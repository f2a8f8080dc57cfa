"""The harness notices what it is there to notice."""

import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from tests.faults import aims, said
from tests.faults.aftermath import Witness, orphans, other_bytes
from tests.faults.aims import Aim, Shot
from tests.faults.damages import Place
from tests.faults.kinds import Kind, running
from tests.faults.phases import phase
from tests.faults.tally import Fault, Tally
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


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["stage.py", "--attempt", "1"], Kind.STAGE),
        (["dagrpo.tracking.follow"], Kind.FOLLOWER),
        (["sglang.launch_server"], Kind.SERVER),
        (["dagrpo.pipeline.launch", "2", "stage.py"], Kind.LAUNCHER),
        (["dagrpo.rewards.worker"], Kind.HELPER),
    ],
)
def test_processes_are_told_apart(tmp_path: Path, words: list[str], kind: Kind) -> None:
    process = _sleeping(tmp_path, *words)
    try:
        assert running(tmp_path) == {kind: [psutil.Process(process.pid)]}
    finally:
        process.kill()
        process.wait()


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


def test_what_a_sentence_advises_is_done(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results/scores.json").write_text("damaged")
    said.follow(tmp_path, "results/scores.json is not valid JSON: delete results/scores.json, then run again.")
    assert list((tmp_path / "results").iterdir()) == []


def test_a_traceback_and_a_long_sentence_are_told() -> None:
    assert said.faults_of("mended by x", "panel") == []
    assert said.faults_of("x" * 501, "Traceback (most recent call last):\n  File\nOSError: full\n") == [
        "a traceback is shown: OSError: full",
        "the sentence has 501 characters",
    ]


def test_files_of_one_kind_have_one_name() -> None:
    names = {Place(file=f"results/step_0000{number}.json", target="", makes=()).kind for number in (1, 2)}
    assert names == {"results/step_*.json"}


def test_the_table_counts_faults_and_differences(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    tally.add(Fault(kind="kill: stage", what="one"))
    tally.add(Fault(kind="kill: stage", what="two", differences=("another policy",)))
    assert [line.split() for line in tally.table()[1:]] == [["kill:", "stage", "2", "1"], ["all", "2", "1"]]
    assert tally.differences() == ["kill: stage: two: another policy"]
    assert "another policy" in capsys.readouterr().out


def test_an_aim_fires_after_a_file_is_written_again_and_not_before(tmp_path: Path) -> None:
    aim = Aim(name="a state", files=(".state/tiny-*/step_*",), within=0.0)
    (tmp_path / ".state/tiny-a").mkdir(parents=True)
    (tmp_path / ".state/tiny-a/step_1").touch()
    shot = Shot(aim, tmp_path, random.Random(0))
    assert not shot.is_due()
    (tmp_path / ".state/tiny-a/step_2").touch()
    assert shot.is_due()
    assert not shot.is_in_vain()


def test_an_aim_whose_event_does_not_come_is_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aims, "PATIENCE", 0.0)
    shot = Shot(Aim(name="a state", files=("state",), within=0.0), tmp_path, random.Random(0))
    assert not shot.is_due()
    assert shot.is_in_vain()


def test_a_place_is_named_after_the_stage_of_the_victim(tmp_path: Path) -> None:
    process = _sleeping(tmp_path, "stage.py", "--job", ".state/jobs/train-ab12.json", "--log", "logs/train.log")
    try:
        victim = psutil.Process(process.pid)
        while victim.status() == psutil.STATUS_RUNNING:  # it starts
            time.sleep(0.05)
        assert phase(tmp_path, {Kind.STAGE: [victim]}, victim) == "train: starts, or is short"
        (tmp_path / ".state/tiny-a/.step_1.part").mkdir(parents=True)
        assert phase(tmp_path, {Kind.STAGE: [victim]}, None) == "train: writes a state"
        (tmp_path / "logs").mkdir()
        (tmp_path / ".state/tiny-a/.step_1.part").rmdir()
        (tmp_path / "logs/train.server.log").write_text("")
        assert phase(tmp_path, {Kind.STAGE: [victim]}, victim) == "train: starts a server"
        (tmp_path / "logs/train.server.log").write_text("The server is fired up")
        assert phase(tmp_path, {Kind.STAGE: [victim]}, victim) == "train: waits for the server"
    finally:
        process.kill()
        process.wait()
    assert phase(tmp_path, {}, None) == "between stages"
