"""One process at a time for a path, also where its first holder was killed."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

import pytest
from tests.waiting import wait_until

from dagrpo.core.errors import UserError
from dagrpo.utils import locks, slurm
from dagrpo.utils.locks import Process, exclusive_access

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from dagrpo.utils.locks import exclusive_access, noted_holder
with exclusive_access(Path("out/result.txt"), Path(".state/result.lock")) as held:
    if "child" in sys.argv:
        child = subprocess.Popen(["sleep", "60"], pass_fds=[held])
        print(child.pid, flush=True)
    print("held", flush=True)
    time.sleep(60)
"""
Start = Callable[..., tuple[subprocess.Popen[str], list[str]]]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(locks, "SECONDS_TO_WAIT", 0.5)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that holds the path; what it said before it held it."""
    processes = []

    def holder(*arguments: str) -> tuple[subprocess.Popen[str], list[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        processes.append(process)
        assert process.stdout is not None
        said = list(iter(process.stdout.readline, "held\n"))
        return process, said

    yield holder
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _hold() -> None:
    with exclusive_access(Path("out/result.txt"), Path(".state/result.lock")):
        pass


def test_a_second_process_is_told_who_holds_a_path_and_waits_before(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = start()
    who = rf"out/result.txt is being written by `-c` \(process {first.pid}\): wait for it to end, or stop it."
    with pytest.raises(UserError, match=who) as refused:
        _hold()
    assert len(str(refused.value)) < 500
    assert "Waiting for `" in capsys.readouterr().err


def test_a_child_holds_on_when_its_parent_is_killed(start: Start) -> None:
    first, said = start("child")
    first.kill()
    first.wait()
    with pytest.raises(UserError, match=rf"`sleep 60` \(process {int(said[0])}\)"):
        _hold()
    os.kill(int(said[0]), signal.SIGKILL)
    _hold()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_disk_without_file_locks_is_named_with_the_remedy(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS without its lock service, and Lustre that is mounted without flock."""

    def no_locks(file: IO[str], operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(
        UserError, match=r"\.state/result\.lock cannot be locked \(.*\.state, on a disk with file locks"
    ):
        _hold()


NOTE = Path(".state/result.json")


def _move_to_another_host(**changes: str) -> None:
    noted = json.loads(NOTE.read_text())
    noted["process"] |= {"host": "another-host", **changes}
    NOTE.write_text(json.dumps(noted))


def _killed_elsewhere(start: Start, **changes: str) -> None:
    first, _ = start()
    _move_to_another_host(**changes)
    first.kill()
    first.wait()


def test_a_holder_of_another_machine_that_was_killed_holds_until_it_is_silent_for_long(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock need not have reached this machine."""
    monkeypatch.setattr(locks, "SECONDS_BETWEEN_QUESTIONS", 0.1)
    _killed_elsewhere(start)
    with pytest.raises(UserError, match=r"on another-host\): wait .* noticed 300 seconds after its end"):
        _hold()
    long_ago = NOTE.stat().st_mtime - locks.SECONDS_OF_SILENCE - 1
    os.utime(NOTE, (long_ago, long_ago))
    _hold()


def test_a_holder_of_another_machine_is_gone_when_its_slurm_job_is_by_the_queue_of_its_own_cluster(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "SECONDS_BETWEEN_QUESTIONS", 0.1)
    monkeypatch.setattr(slurm, "_queued", lambda *which: [])
    _killed_elsewhere(start, slurm_job="14", slurm_cluster="alpha")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "beta")
    with pytest.raises(UserError, match="on another-host, SLURM job 14"):
        _hold()
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "alpha")
    _hold()


def test_a_holder_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "SECONDS_BETWEEN_SIGNS", 0.01)
    with exclusive_access(Path("out/result.txt"), Path(".state/result.lock")):
        os.utime(NOTE, (0, 0))
        wait_until(lambda: not locks.is_silent(NOTE))


def test_a_holder_that_was_suspended_for_long_leaves_the_note_of_the_next_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its machine slept, and another one took the path over meanwhile."""
    monkeypatch.setattr(locks, "SECONDS_BETWEEN_SIGNS", 0.01)
    with exclusive_access(Path("out/result.txt"), Path(".state/result.lock")):
        _move_to_another_host()
        os.utime(NOTE, (0, 0))
        time.sleep(0.1)
        assert NOTE.stat().st_mtime == 0
    assert NOTE.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a namespace of processes")
def test_a_process_that_cannot_be_seen_from_a_container_is_not_taken_for_gone() -> None:
    command = "import sys, json; from dagrpo.utils.locks import Process; process = Process(**json.loads(sys.argv[1]))"
    asked = f"{command}; print(process.is_here, process.is_gone)"
    own = json.dumps(asdict(Process.current()))
    inside = ("unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", asked, own)
    assert subprocess.run(inside, capture_output=True, text=True, check=True).stdout == "False False\n"
    outside = (sys.executable, "-c", asked, own)
    assert subprocess.run(outside, capture_output=True, text=True, check=True).stdout == "True False\n"
