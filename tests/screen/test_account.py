"""Snakemake starts for a user without a name or a home, as a container has them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = "import os, snakemake_logger_plugin_dagrpo; print(*map(os.environ.get, ('LOGNAME', 'XDG_CACHE_HOME')))"
NAMELESS = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME", "XDG_CACHE_HOME")


def _shown(folder: Path, home: Path, *before: str) -> list[str]:
    """Return LOGNAME and XDG_CACHE_HOME of Snakemake's process, started in `folder` with this home."""
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment |= {"HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*before, sys.executable, "-c", SHOW]
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout.split()


def test_an_account_with_name_and_home_is_left_alone(tmp_path: Path) -> None:
    assert _shown(tmp_path, tmp_path) == ["None", "None"]


def test_a_home_that_cannot_be_written_is_replaced_below_the_project(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", Path("/proc/none"), Path("/proc")):
        assert _shown(tmp_path, home)[1] == str(tmp_path / ".state/cache")


def test_a_user_id_without_a_name_gets_one(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run([*NAMELESS, "true"], check=False).returncode != 0:
        pytest.skip("this user may not take another user id in a namespace (unshare --user)")
    assert _shown(tmp_path, tmp_path, *NAMELESS) == ["12345", "None"]
