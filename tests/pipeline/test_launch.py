"""Several processes of one script, what is said when one of them fails, and who can reach them."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.everyday import everyday
from tests.listening import beyond_loopback, open_sockets

from dagrpo.core.errors import UserError
from dagrpo.utils.addresses import free_port
from dagrpo.utils.distributed import process_group

pytestmark = pytest.mark.slow
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
rank = os.environ["RANK"]
Path(rank).write_text(" ".join(sys.argv[1:]))
if sys.argv[3] == "well":
    import dagrpo.pipeline.runner
    Path(f"rank {dagrpo.pipeline.runner.rank()}").touch()
if rank == sys.argv[2]:
    if sys.argv[3] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[3] == "mistaken":
        print("train: a sentence.", file=sys.stderr, flush=True)
        sys.exit(65)
    if sys.argv[3] == "silent":
        sys.exit(3)
    if sys.argv[3] == "recorded":
        from dagrpo.pipeline.runner import _note_for_launcher
        _note_for_launcher(RuntimeError("a bug"))
        sys.exit(1)
elif sys.argv[3] != "well":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as a stage does
    time.sleep(60)
"""


def _launch(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "dagrpo.pipeline.launch", "2", "train.py", "--log", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50)
    return done.returncode, done.stderr.splitlines()


def test_every_process_gets_its_rank_and_the_arguments_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")  # the whole run is a task of somebody's job
    assert _launch(tmp_path, "0", "well", "--nodes=7", "$a$$") == (0, [])
    assert {(tmp_path / rank).read_text() for rank in "01"} == {"--log 0 well --nodes=7 $a$$"}
    assert {path.name for path in tmp_path.glob("rank *")} == {"rank 0", "rank 1"}


@pytest.mark.parametrize(
    ("rank", "how", "ended", "said"),
    [
        ("1", "killed", 1, "train.py: rank 1 of 2 ended with SIGKILL, which it was sent (SIGKILL: often by a system "),
        *everyday(
            [],
            [
                ("1", "recorded", 1, "train.py: rank 1 of 2 ended with exit code 1: RuntimeError: a bug"),
                ("0", "mistaken", 65, "train: a sentence."),
                ("1", "silent", 3, "train.py: rank 1 of 2 ended with exit code 3: its log, beside that of the stage,"),
            ],
        ),
    ],
)
def test_a_failure_ends_all_and_is_one_sentence(rank: str, how: str, ended: int, said: str, tmp_path: Path) -> None:
    code, lines = _launch(tmp_path, rank, how)
    assert code == ended
    assert len(lines) == 1
    assert lines[0].startswith(said)


@pytest.mark.nightly
@pytest.mark.parametrize("node", ["0", "1"])
def test_a_signal_ends_a_node_that_waits_for_others(node: str, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    command = [sys.executable, "-m", "dagrpo.pipeline.launch", "--nodes", "2", "--node", node, "--address", address]
    with subprocess.Popen([*command, "1", "train.py"], cwd=tmp_path, stderr=subprocess.PIPE) as launcher:
        try:
            while not _handles_sigterm(launcher.pid):
                time.sleep(0.1)
            time.sleep(2)  # it waits in C++ now; before, the handler itself would run
            launcher.terminate()
            assert launcher.wait(timeout=60) == 143
        finally:
            launcher.kill()


def _handles_sigterm(pid: int) -> bool:
    caught = re.search(r"SigCgt:\t(\w+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


TALKING = """
import os, signal, sys, time
import torch
from dagrpo.utils.distributed import process_group
with process_group() as world:
    world.all_reduce(torch.ones(1))
    if world.is_rank_zero:
        print(os.environ["DAGRPO_RENDEZVOUS"], flush=True)
    time.sleep(60)
"""
OUTER = next((name for name in psutil.net_if_addrs() if name.startswith(("e", "w"))), "lo")


@contextmanager
def _talking(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Two processes that have talked to each other, where the environment names an interface of the outer world."""
    (folder / "talk.py").write_text(TALKING)
    environment = os.environ | {"GLOO_SOCKET_IFNAME": OUTER, "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "dagrpo.pipeline.launch", "2", "talk.py"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as launcher:
        try:
            assert launcher.stdout is not None
            yield launcher, Path(launcher.stdout.readline().strip())
        finally:
            launcher.terminate()


def test_processes_that_train_together_are_reached_by_no_other_machine_and_no_other_user(tmp_path: Path) -> None:
    with _talking(tmp_path) as (launcher, rendezvous):
        assert open_sockets(launcher.pid), "gloo listens for its peers"
        assert beyond_loopback(launcher.pid) == []
        assert psutil.Process(launcher.pid).net_connections() == [], "the launcher itself needs none"
        assert stat.S_IMODE(rendezvous.parent.stat().st_mode) == 0o700
        assert rendezvous.stat().st_uid == os.getuid()
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(30) == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["talk.py"], "nothing is left"


SLOW_TO_END = """
import signal, sys, time
def end(number, frame):
    time.sleep(2)
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, end)
sys.stdout.write("ready\\n")  # at once: two ranks write to one pipe
time.sleep(60)
"""


@pytest.mark.nightly
def test_a_second_signal_to_stop_changes_nothing(tmp_path: Path) -> None:
    """A whole process group may be told to stop, and each process then tells those that it has started."""
    (tmp_path / "slow.py").write_text(SLOW_TO_END)
    command = [sys.executable, "-m", "dagrpo.pipeline.launch", "2", "slow.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as launcher:
        try:
            assert launcher.stdout is not None
            assert [launcher.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
            ranks = psutil.Process(launcher.pid).children()
            launcher.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            launcher.send_signal(signal.SIGTERM)
            assert launcher.wait(40) == 128 + signal.SIGTERM
            assert not any(rank.is_running() for rank in ranks)
        finally:
            launcher.kill()


def test_processes_of_another_launcher_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match=r"unset WORLD_SIZE, .* runtime\.training\.processes"), process_group():
        pass
