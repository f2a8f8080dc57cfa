"""What a stage runs in: versions, the lock they were installed from, the git commit, and the process itself."""

import getpass
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from dagrpo.files import sha256_of

PACKAGES = ("torch", "sglang", "transformers", "pyarrow")
LOCKS = ("requirements/cpu.lock", "requirements/gpu.lock")
GIT_TIMEOUT_SECONDS = 10
_START_TOLERANCE_SECONDS = 2.0  # start times are read from clocks of coarse resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    started: float  # seconds since 1970
    host: str

    @classmethod
    def current(cls) -> "Process":
        return cls(pid=os.getpid(), started=psutil.Process().create_time(), host=socket.gethostname())

    @property
    def is_here(self) -> bool:
        """It runs, or ran, on this machine."""
        return self.host == socket.gethostname()

    @property
    def is_gone(self) -> bool:
        """True when it certainly runs no more; a process of another machine is given the benefit of the doubt."""
        if not self.is_here:
            return False
        try:
            process = psutil.Process(self.pid)
            started, status = float(process.create_time()), process.status()
        except psutil.NoSuchProcess:
            return True
        is_another = abs(started - self.started) > _START_TOLERANCE_SECONDS
        return is_another or bool(status == psutil.STATUS_ZOMBIE)


def environment_tags(root: Path) -> dict[str, str]:
    """Tags that say in what a stage ran; what cannot be found out is left out."""
    tags = {"version.python": sys.version.split()[0], "mlflow.user": _user()}
    tags |= {f"version.{name}": installed for name in PACKAGES if (installed := _version(name))}
    return tags | _lock_tags(root) | _git_tags(root)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return str(os.getuid())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _lock_tags(root: Path) -> dict[str, str]:
    """The lock whose torch is the installed one: cpu.lock and gpu.lock never pin the same build."""
    installed = (_version("torch") or "").partition("+")[0]
    for name in LOCKS:
        path = root / name
        if path.is_file() and re.search(rf"^torch=={re.escape(installed)}(?![\w.])", path.read_text(), re.MULTILINE):
            return {"environment.lock": name, "environment.sha256": sha256_of(path)}
    return {}


def _git_tags(root: Path) -> dict[str, str]:
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return {}
    dirty = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {"mlflow.source.git.commit": commit, "git.commit": commit, "git.dirty": str(dirty != "").lower()}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", *arguments), cwd=root, capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or one that does not answer
        return None
    return done.stdout.strip()
