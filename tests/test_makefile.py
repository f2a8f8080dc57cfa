"""`make` says what can be made."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _make(*arguments: str) -> str:
    """What make says; not as the child of another make, which would say more."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True).stdout


def test_every_target_is_listed_with_a_line() -> None:
    shown = _make().splitlines()
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert sorted(line.split()[1] for line in shown) == sorted(phony[1].split())
    assert all(len(line.split()) > 4 for line in shown)


def test_setting_up_says_what_it_does_before_it_does_it() -> None:
    planned = _make("-n", "-B", "setup")
    assert "minutes" in planned.splitlines()[0]
    assert "GB on disk" in planned.splitlines()[0]
