"""Ctrl-C while the Python of a stage starts."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from dagrpo.config.places import ROOT

STOPPED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


def test_a_stage_that_is_stopped_while_it_imports_ends_without_a_traceback(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "workflow/scripts/stage.py", tmp_path / "stage.py")
    (tmp_path / "own_code.py").write_text(STOPPED)
    done = subprocess.run([sys.executable, "stage.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
