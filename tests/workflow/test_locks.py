"""The lock of a killed run is released, that of a living one never: not on this machine, not on another."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dagrpo.workflow.locks import LOCKS, NOTE, note_owner, release_stale_lock


def _lock(folder: Path) -> Path:
    lock = folder / LOCKS / "0.input.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    return lock


def _owner(folder: Path, **changes: object) -> None:
    """A note of a process that is gone, with changes."""
    note_owner(folder)
    note = folder / NOTE
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    note.write_text(json.dumps(json.loads(note.read_text()) | {"pid": gone.pid} | changes))


def test_the_lock_of_a_run_that_was_killed_here_is_released(tmp_path: Path) -> None:
    lock = _lock(tmp_path)
    _owner(tmp_path)
    assert release_stale_lock(tmp_path)
    assert not lock.exists()
    assert not release_stale_lock(tmp_path)


def test_the_lock_of_a_living_run_stays(tmp_path: Path) -> None:
    lock = _lock(tmp_path)
    note_owner(tmp_path)
    assert not release_stale_lock(tmp_path)
    assert lock.exists()


def test_the_lock_of_a_run_on_another_machine_stays(tmp_path: Path) -> None:
    lock = _lock(tmp_path)
    _owner(tmp_path, host="another-host")
    assert not release_stale_lock(tmp_path)
    assert lock.exists()


def test_a_lock_without_a_note_stays(tmp_path: Path) -> None:
    lock = _lock(tmp_path)
    assert not release_stale_lock(tmp_path)
    assert lock.exists()


def test_the_lock_of_a_later_run_that_has_not_noted_itself_yet_stays(tmp_path: Path) -> None:
    _owner(tmp_path)
    lock = _lock(tmp_path)
    later = time.time() + 5
    os.utime(lock, (later, later))
    assert not release_stale_lock(tmp_path)
    assert lock.exists()


@pytest.mark.parametrize("content", ['{"pid', "[]", '{"pid": 1}'])
def test_a_damaged_note_releases_nothing_and_blocks_nothing(tmp_path: Path, content: str) -> None:
    lock = _lock(tmp_path)
    (tmp_path / NOTE).parent.mkdir()
    (tmp_path / NOTE).write_text(content)
    assert not release_stale_lock(tmp_path)
    assert lock.exists()


WATCHED = (
    "import time; from dagrpo.execution.ancestors import stop_with_the_workflow; "
    "stop_with_the_workflow(); print(1, flush=True); time.sleep(60)"
)


@pytest.mark.parametrize("name", ["snakemake", "torchrun", "dagrpo.launch", "stage.py"])
def test_a_stage_ends_when_the_workflow_above_it_is_killed(tmp_path: Path, name: str) -> None:
    script = tmp_path / name
    script.write_text(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WATCHED!r}])")
    read, write = os.pipe()
    workflow = subprocess.Popen([sys.executable, str(script)], stdout=write)
    os.close(write)
    with os.fdopen(read) as stage_output:
        assert stage_output.readline() == "1\n"
        workflow.kill()
        workflow.wait()
        assert stage_output.read() == ""  # end of file: the stage, which held the other end, is gone
