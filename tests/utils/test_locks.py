"""One process at a time for a path, also where its first holder was killed."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil
import pytest

from dagrpo.core.errors import UserError
from dagrpo.utils import locks
from dagrpo.utils.locks import exclusive_access, noted_holder
from dagrpo.utils.process import Process

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
    who = (
        rf"out/result.txt is being written by `.*python -c .*` \(process {first.pid}\): wait for it to end, or stop it."
    )
    with pytest.raises(UserError, match=who) as refused:
        _hold()
    assert len(str(refused.value)) < 500
    assert "Waiting for `" in capsys.readouterr().err


def test_a_killed_holder_lets_go_at_once(start: Start) -> None:
    first, _ = start()
    first.kill()
    first.wait()
    _hold()


def test_a_child_holds_on_when_its_parent_is_killed(start: Start) -> None:
    first, said = start("child")
    first.kill()
    first.wait()
    with pytest.raises(UserError, match=rf"`sleep 60` \(process {int(said[0])}\)"):
        _hold()
    os.kill(int(said[0]), signal.SIGKILL)
    _hold()


def test_of_a_holder_that_cannot_be_seen_is_said_how_to_find_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a child of a killed stage that belongs to another user."""
    first, _ = start("child")
    first.kill()
    first.wait()
    monkeypatch.setattr(psutil, "process_iter", lambda: iter(()))
    with pytest.raises(UserError, match=rf"by another process \(`fuser -v {tmp_path}/.state/result.lock` shows it"):
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


def test_a_holder_on_another_machine_is_named_by_its_note(start: Start) -> None:
    first, _ = start()
    note = Path(".state/result.lock.json")
    host = Process.current().host
    note.write_text(note.read_text().replace(f'"{host}"', '"another-host"'))
    with pytest.raises(UserError, match=rf"\(process {first.pid} on another-host\): wait"):
        _hold()


@pytest.mark.parametrize("content", [[], {}, {"process": []}, {"process": {"pid": 1}}, {"process": None, "command": 5}])
def test_a_note_of_any_form_names_nobody(content: object) -> None:
    note = Path("note.json")
    note.write_text(json.dumps(content))
    assert noted_holder(note) is None


def test_whoever_a_note_names_is_told_on_one_line_without_control_characters() -> None:
    note = Path("note.json")
    process = {"pid": 7, "started": 1, "host": "else\x1b[2J" * 10_000, "boot": ""}
    note.write_text(json.dumps({"process": process, "command": "a\u202e\x1b[2J\n" * 100_000}))
    told = str(noted_holder(note))
    assert told.isprintable()
    assert len(told) < 250
