"""Ctrl-C while the Python of a stage starts."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from dagrpo.config.places import ROOT

STOPPED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
FROM_A_TERMINAL = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


def test_a_stage_that_is_stopped_while_it_imports_ends_without_a_traceback(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "workflow/scripts/stage.py", tmp_path / "stage.py")
    (tmp_path / "own_code.py").write_text(STOPPED)
    # In the background of a shell the tests ignore Ctrl-C, and so would the stage.
    start = [sys.executable, "-c", FROM_A_TERMINAL, sys.executable, "stage.py"]
    done = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_stage_reads_no_answer_from_its_starter(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "workflow/scripts/stage.py", tmp_path / "stage.py")
    (tmp_path / "own_code.py").write_text("import sys\nprint(repr(sys.stdin.read()))\nraise SystemExit(0)\n")
    done = subprocess.run(
        [sys.executable, "stage.py"], cwd=tmp_path, input="y\n", capture_output=True, text=True, check=True
    )
    assert done.stdout == "''\n"
