import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dagrpo.utils.watched_process import MEMORY, NOTE, WatchedProcess, note, remove_noted

LivingIn = Callable[[int], list[str]]
WaitUntil = Callable[[Callable[[], bool]], None]
FAMILY = ["/bin/sh", "-c", "sleep 100 & (sleep 100 & sleep 100) & wait"]


def start(command: list[str], folder: Path) -> WatchedProcess:
    scratch = folder / "scratch"
    scratch.mkdir()
    (scratch / "settings.yaml").write_text("secret")
    return WatchedProcess(command, environment=dict(os.environ), log=folder / "logs" / "it.log", scratch=scratch)


def mapping(path: Path, name: str = "maps") -> list[str]:
    """A command that takes a name, maps a file, says that it is ready, and waits."""
    code = (
        f"open('/proc/self/comm', 'w').write({name!r}); "
        f"import mmap, time; file = open({str(path)!r}, 'r+b'); held = mmap.mmap(file.fileno(), 0); "
        "print('ready', flush=True); time.sleep(99)"
    )
    return [sys.executable, "-c", code]


def end_lifeline(process: WatchedProcess) -> None:
    """What the kernel does when the parent ends."""
    os.close(process._lifeline)
    process._lifeline = -1


def test_stopping_ends_the_whole_family_and_removes_its_scratch_folder(
    tmp_path: Path, living_in: LivingIn, wait_until: WaitUntil
) -> None:
    process = start(FAMILY, tmp_path)
    wait_until(lambda: len(living_in(process.pid)) >= 5)
    assert process.exit_code() is None
    process.stop()
    process.stop()
    assert process.exit_code() == -signal.SIGKILL
    wait_until(lambda: not living_in(process.pid))
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_parent_killed_at_any_time_leaves_no_process_and_no_scratch_folder(
    tmp_path: Path, seconds: float, living_in: LivingIn, wait_until: WaitUntil
) -> None:
    code = (
        "import os, time; from pathlib import Path; from dagrpo.utils.watched_process import WatchedProcess\n"
        f"folder = Path({str(tmp_path)!r}); (folder / 'scratch').mkdir()\n"
        f"process = WatchedProcess({FAMILY!r}, environment=dict(os.environ), log=folder / 'it.log', "
        "scratch=folder / 'scratch')\n"
        "print(process.pid, flush=True); time.sleep(100)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    time.sleep(seconds)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not living_in(group))
    wait_until(lambda: not (tmp_path / "scratch").exists())


@pytest.mark.parametrize("kill_parent", [False, True], ids=["stopped", "parent killed"])
def test_what_is_noted_of_shared_memory_is_removed_with_it_and_nothing_else(
    tmp_path: Path, wait_until: WaitUntil, kill_parent: bool
) -> None:
    ours, others = MEMORY / f"sem.mp-dagrpo{os.getpid()}{kill_parent}", tmp_path / "sem.mp-others"
    for path in (ours, others):
        path.write_text("")
    process = start(["sleep", "100"], tmp_path)
    (process.scratch / NOTE).write_text(f"{ours}\n")
    if kill_parent:
        end_lifeline(process)
    else:
        (process.scratch / NOTE).write_text(f"{ours}\n{others}\n")
        process.stop()
    wait_until(lambda: not ours.exists())
    wait_until(lambda: not process.scratch.exists())
    assert others.exists()


def test_what_processes_have_mapped_of_a_servers_shared_memory_is_noted(tmp_path: Path) -> None:
    path = MEMORY / f"sglang_loads_dagrpo_{os.getpid()}"
    path.write_bytes(b"x" * 4096)
    try:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
            note(tmp_path, os.getpgid(0))
        note(tmp_path, os.getpgid(0))  # what it has let go of may still be there
        assert (tmp_path / NOTE).read_text() == f"{path}\n"
        remove_noted(tmp_path)
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("kill_parent", [False, True], ids=["stopped", "parent killed"])
def test_shared_memory_of_a_server_that_was_never_ready_is_removed_with_it(
    tmp_path: Path, wait_until: WaitUntil, kill_parent: bool
) -> None:
    path = MEMORY / f"sglang_loads_dagrpo_{os.getpid()}_{kill_parent}"
    path.write_bytes(b"x" * 4096)
    process = start(mapping(path), tmp_path)
    try:
        wait_until(lambda: process.log.read_text() == "ready\n")
        if kill_parent:
            end_lifeline(process)
        else:
            process.stop()
        wait_until(lambda: not path.exists())
        wait_until(lambda: not process.scratch.exists())
    finally:
        path.unlink(missing_ok=True)


def test_output_and_exit_code_are_kept_and_only_the_user_may_read_the_log(
    tmp_path: Path, wait_until: WaitUntil
) -> None:
    process = start(["/bin/sh", "-c", "cat; echo out; echo err >&2; exit 3"], tmp_path)  # nothing comes from its parent
    wait_until(lambda: process.exit_code() is not None)
    process.stop()
    assert process.exit_code() == 3
    assert process.log.read_text() == "out\nerr\n"
    assert process.log.stat().st_mode & 0o777 == 0o600


def test_a_file_elsewhere_whose_path_ends_as_shared_memory_does_is_none(tmp_path: Path, wait_until: WaitUntil) -> None:
    name = f"sem.mp-dagrpo_{os.getpid()}_elsewhere"
    theirs, elsewhere = MEMORY / name, tmp_path / f"files{MEMORY}" / name
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_bytes(b"x" * 4096)
    theirs.write_text("of another program")
    process = start(mapping(elsewhere), tmp_path)
    try:
        wait_until(lambda: process.log.read_text() == "ready\n")
        end_lifeline(process)
        wait_until(lambda: not process.scratch.exists())
        assert theirs.exists()
    finally:
        theirs.unlink()
