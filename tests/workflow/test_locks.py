import os
import subprocess
import sys
from pathlib import Path

import pytest

from dagrpo.workflow.locks import release_stale_lock


def _lock(folder: Path) -> Path:
    lock = folder / ".snakemake/locks/0.input.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    return lock


def test_the_lock_of_a_killed_run_is_released(tmp_path: Path) -> None:
    lock = _lock(tmp_path)
    assert release_stale_lock(tmp_path)
    assert not lock.exists()
    assert not release_stale_lock(tmp_path)


def test_the_lock_of_a_living_run_stays(tmp_path: Path) -> None:
    lock = _lock(tmp_path)
    script = tmp_path / "snakemake"
    script.write_text("print(flush=True); input()")
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as living:
        assert living.stdout is not None
        living.stdout.readline()
        assert not release_stale_lock(tmp_path)
        living.communicate("\n")
    assert lock.exists()


WATCHED = "import time; from dagrpo.ancestors import stop_with_the_workflow; stop_with_the_workflow(); print(1, flush=True); time.sleep(60)"


@pytest.mark.parametrize("name", ["snakemake", "torchrun", "dagrpo.launch"])
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
