"""`make` says what can be made."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_target_is_listed_with_a_line() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert sorted(line.split()[1] for line in shown) == sorted(phony[1].split())
    assert all(len(line.split()) > 4 for line in shown)


def test_setting_up_says_what_it_does_before_it_does_it() -> None:
    planned = subprocess.run(["make", "-n", "-B", "setup"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "minutes" in planned.splitlines()[0]
    assert "GB on disk" in planned.splitlines()[0]
