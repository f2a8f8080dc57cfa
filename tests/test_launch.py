"""Several processes of one script, and what is said when one of them fails."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
rank = os.environ["RANK"]
Path(rank).write_text(" ".join(sys.argv[1:]))
if rank == sys.argv[2]:
    if sys.argv[3] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[3] == "mistaken":
        print("train: a sentence.", file=sys.stderr, flush=True)
        sys.exit(65)
    if sys.argv[3] == "silent":
        sys.exit(3)
elif sys.argv[3] != "well":
    time.sleep(60)
"""


def _launch(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "dagrpo.launch", "2", "train.py", "--log", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50)
    return done.returncode, done.stderr.splitlines()


def test_every_process_gets_the_arguments_as_they_are(tmp_path: Path) -> None:
    assert _launch(tmp_path, "0", "well", "--nnodes=7")[0] == 0
    assert {(tmp_path / rank).read_text() for rank in "01"} == {"--log 0 well --nnodes=7"}


@pytest.mark.parametrize(
    ("rank", "how", "ended", "said"),
    [
        ("0", "mistaken", 65, "train: a sentence."),
        (
            "0",
            "killed",
            1,
            "train.py: process 0 of 2 ended with SIGKILL, which it was sent (SIGKILL: often by a system ",
        ),
        (
            "1",
            "killed",
            1,
            "train.py: process 1 of 2 ended with SIGKILL, which it was sent (SIGKILL: often by a system ",
        ),
        (
            "1",
            "silent",
            3,
            "train.py: process 1 of 2 ended with exit code 3: its log, beside that of the stage, says why.",
        ),
    ],
)
def test_a_failure_ends_all_and_is_one_sentence(rank: str, how: str, ended: int, said: str, tmp_path: Path) -> None:
    code, lines = _launch(tmp_path, rank, how)
    assert code == ended
    assert len(lines) == 1
    assert lines[0].startswith(said)
