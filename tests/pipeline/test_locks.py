"""One run at a time in an experiment's folders, and what a killed run has left is removed where that is certain."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from dvc.lock import LockBase, LockError, make_lock

from dagrpo.core.errors import UserError
from dagrpo.pipeline import locks
from dagrpo.pipeline.locks import DRIVER, RUNNING, hold
from dagrpo.pipeline.snakemake_private import LOCKS
from dagrpo.utils import slurm
from dagrpo.utils.slurm import QueuedJob

HOLDER = """
import sys, time
from dagrpo.pipeline.locks import hold
sys.argv = ["/usr/bin/snakemake", "--cores", "all", "target"]
hold("tiny")
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    yield
    locks._taken.close()


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """Another process that runs the experiment tiny."""
    yield from _another_process()


def _another_process() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(HOLDER)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def _snakemakes_lock(name: str, *lines: str) -> Path:
    lock = LOCKS / name
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text("\n".join(lines))
    return lock


def test_a_second_run_of_the_same_experiment_is_refused_with_the_name_of_the_first(
    other: subprocess.Popen[str],
) -> None:
    with pytest.raises(
        UserError,
        match=rf"results/tiny is being written by `snakemake --cores all target` \(process {other.pid}\): wait",
    ):
        hold("tiny")


@pytest.mark.nightly
def test_tries_go_on_beside_an_experiment_and_another_experiment_waits(tmp_path: Path) -> None:
    Path(".dvc").mkdir()
    for other in _another_process():
        hold("tiny~0123abcd")
        with pytest.raises(
            UserError, match=rf"tiny is being run by .*{other.pid}\), and only override runs may run beside"
        ):
            hold("twin")


def test_a_run_that_dvc_drives_waits_for_its_turn(
    other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DVC_STAGE", "train@tiny-0")
    waiter = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert waiter.stderr is not None
    assert waiter.stdout is not None
    assert f"(process {other.pid}) to end" in waiter.stderr.readline()
    other.kill()
    assert waiter.stdout.readline() == "held\n"
    waiter.kill()
    waiter.wait()


def _killed(other: subprocess.Popen[str], host: str = "", **noted: str) -> Path:
    """Return Snakemake's lock of a run that was killed; `noted` is in the note on it, and on which machine it was."""
    lock = _snakemakes_lock("0.output.lock", "results/tiny/runs/seed_0/policy/manifest.json")
    other.kill()
    other.wait()
    note = RUNNING / "tiny.json"
    content = json.loads(note.read_text()) | noted
    content["process"] |= {"host": host} if host else {}
    note.write_text(json.dumps(content))
    return lock


def test_the_locks_of_a_killed_run_are_removed_and_those_of_others_stay(other: subprocess.Popen[str]) -> None:
    theirs = _snakemakes_lock("1.output.lock", "results/tiny2/runs/seed_0/policy/manifest.json")
    mine = _killed(other)
    hold("tiny")
    assert (mine.exists(), theirs.exists()) == (False, True)
    hold("tiny2")
    assert theirs.exists(), "nobody has noted whose it is"


def test_the_lock_of_a_run_on_another_machine_stays_until_that_is_silent_for_long(
    other: subprocess.Popen[str],
) -> None:
    lock = _killed(other, host="another-host")
    with pytest.raises(UserError, match=r"is being written by `snakemake .* on another-host\): wait for it to end"):
        hold("tiny")
    assert lock.exists()
    os.utime(RUNNING / "tiny.json", (0, 0))
    hold("tiny")
    assert not lock.exists()


@pytest.mark.parametrize(
    ("noted", "said"),
    [
        ({"executor": "slurm", "jobs": "a-run"}, r"slurm may be at work, .* where `squeue` answers"),
        ({"executor": "kubernetes"}, "kubernetes may be at work"),
        ({"executor": "slurm", "jobs": "a-run", "cluster": "alpha"}, "slurm of the cluster alpha may be at work"),
    ],
)
def test_jobs_of_a_killed_run_that_cannot_be_asked_about_keep_its_lock(
    noted: dict[str, str], said: str, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = _killed(other, **noted)
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "beta")
    monkeypatch.setattr(slurm, "_queued", lambda *which: [] if "cluster" in noted else None)
    with pytest.raises(UserError, match=f"gave to {said}"):
        hold("tiny")
    locks._taken.close()
    assert lock.exists()
    assert json.loads((RUNNING / "tiny.json").read_text())["executor"] == noted["executor"], "for the next run"


def test_a_run_waits_for_the_jobs_that_a_killed_one_has_left_in_slurm(
    other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = _killed(other, executor="slurm", jobs="a-run")
    asked: list[bool] = []

    def jobs_named(name: str, cluster: str) -> list[QueuedJob]:
        assert name == "a-run"
        asked.append(lock.exists())
        return [QueuedJob(number="14", comment="rule_train_wildcards_tiny_0")] if len(asked) < 3 else []

    monkeypatch.setattr(slurm, "jobs_named", jobs_named)
    monkeypatch.setattr(locks, "SECONDS_BETWEEN_QUESTIONS", 0.01)
    hold("tiny")
    assert asked == [True, True, True]
    assert not lock.exists()
    assert capfd.readouterr().err.count("which is gone: 14 (rule_train_wildcards_tiny_0)") == 1


def test_a_run_that_ended_by_itself_leaves_no_jobs_to_ask_about(
    other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _killed(other, executor="kubernetes", jobs="").unlink()  # Snakemake removes its lock at a normal end
    monkeypatch.setattr(slurm, "jobs_named", lambda name, cluster: None)
    hold("tiny")


def _dvcs_lock() -> LockBase:
    """As every `dvc` command takes it."""
    Path(".dvc/tmp").mkdir(parents=True, exist_ok=True)
    return make_lock(str(Path(".dvc/tmp/lock").resolve()))


def test_dvc_and_a_run_keep_each_other_out_but_for_an_override_run() -> None:
    with _dvcs_lock():
        hold("tiny~0123abcd")
        with pytest.raises(
            UserError, match=rf"\(process {os.getpid()}\), since 20.* is at work in {Path.cwd()}: wait for it to end"
        ):
            hold("tiny")
    locks._taken.close()
    lock = _dvcs_lock()
    hold("tiny")
    with pytest.raises(LockError):
        lock.lock()
    locks._taken.close()
    with lock:
        assert lock.is_locked


def test_nothing_is_run_between_two_stages_of_a_living_dvc(other: subprocess.Popen[str]) -> None:
    note = json.loads((RUNNING / "tiny.json").read_text())
    DRIVER.write_text(json.dumps(note | {"command": "dvc repro"}))
    with pytest.raises(UserError, match=r"`dvc repro` \(process \d+\) is at work in this folder"):
        hold("twin")
    other.kill()
    other.wait()
    hold("twin")


DRIVING = """
import subprocess, sys, time
below = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=subprocess.PIPE, text=True)
print(below.stdout.readline(), below.pid, flush=True)
time.sleep(60)
"""


def test_a_run_below_a_killed_dvc_ends_and_leaves_no_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DVC_STAGE", "train@tiny-0")
    Path(".dvc").mkdir()
    script = tmp_path / "dvc"  # its name is how a run knows the DVC above it
    script.write_text(DRIVING)
    driving = subprocess.Popen(
        [sys.executable, script, "repro", HOLDER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert driving.stdout is not None
    assert driving.stdout.readline() == "held\n"
    below = psutil.Process(int(driving.stdout.readline()))
    driving.kill()
    driving.wait()
    psutil.wait_procs([below], timeout=20)
    assert not below.is_running()
    assert driving.stderr is not None
    assert f"process {below.pid} since" in driving.stderr.read()
    with _dvcs_lock():
        pass
