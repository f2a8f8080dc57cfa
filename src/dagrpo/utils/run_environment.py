"""Runtime environment of a stage: versions, lock, git commit, process, hardware."""

import getpass
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dagrpo.utils.environment import PACKAGES, version_of
from dagrpo.utils.files import sha256_of

LOCKS = ("requirements/cpu.lock", "requirements/gpu.lock")
GIT_TIMEOUT_SECONDS = 10
GPUS = Path("/proc/driver/nvidia/gpus")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ZOMBIE = "Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that cannot be confused with a later one of the same number, nor with another one when the clock is set."""

    pid: int
    started: float  # clock ticks since the machine was booted
    host: str
    boot: str = ""  # the kernel's id of that boot; "": not known

    @classmethod
    def current(cls) -> "Process":
        return cls.running(os.getpid())

    @classmethod
    def running(cls, pid: int) -> "Process":
        """Return a process of this machine. Raises ProcessLookupError if none has that number."""
        _, started = _state_and_start(pid)
        return cls(pid=pid, started=started, host=socket.gethostname(), boot=_boot())

    @property
    def is_here(self) -> bool:
        """Return True if it runs, or ran, on this machine."""
        return self.host == socket.gethostname()

    @property
    def is_gone(self) -> bool:
        """Return True if it certainly runs no more; False for a process of another machine, which cannot be checked."""
        if not self.is_here:
            return False
        if self.boot and self.boot != _boot():
            return True
        try:
            state, started = _state_and_start(self.pid)
        except ProcessLookupError:
            return True
        return state == _ZOMBIE or bool(self.boot and started != self.started)


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:  # some containers do not show it
        return "unknown"


def _state_and_start(pid: int) -> tuple[str, int]:
    """Return a process's state and start, in clock ticks since the boot: fields 3 and 22 of proc(5)."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    fields = stat.rpartition(")")[2].split()  # the name before it may have spaces and brackets
    return fields[0], int(fields[19])


def environment_tags(root: Path) -> dict[str, str]:
    """Return tags on a stage's runtime environment; unknown values are left out."""
    tags = {"version.python": sys.version.split()[0], "mlflow.user": user()}
    tags |= {f"version.{name}": installed for name in PACKAGES if (installed := version_of(name))}
    return tags | _hardware_tags() | _lock_tags(root) | _git_tags(root)


def user() -> str:
    """Return the name of this user, or the number of a user without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return str(os.getuid())


def _hardware_tags() -> dict[str, str]:
    """Return tags on processor, cores, memory, and GPUs; read from /proc, for a driver may take seconds to answer."""
    tags = {"hardware.cores": str(os.cpu_count() or 0)}
    tags |= _first_match("hardware.processor", Path("/proc/cpuinfo"), r"^model name\s*: (.+)$")
    gpus = [_first_match("model", path, r"^Model:\s+(.+)$") for path in sorted(GPUS.glob("*/information"))]
    models = [gpu["model"] for gpu in gpus if gpu]
    return tags | _memory() | ({"hardware.gpu": f"{len(models)} x {models[0]}"} if models else {})


def _memory() -> dict[str, str]:
    kibibytes = _first_match("kibibytes", Path("/proc/meminfo"), r"^MemTotal:\s+(\d+) kB$")
    return {"hardware.memory": f"{int(kibibytes['kibibytes']) / (1 << 20):.0f} GiB"} if kibibytes else {}


def _first_match(name: str, path: Path, pattern: str) -> dict[str, str]:
    try:
        found = re.search(pattern, path.read_text(errors="replace"), re.MULTILINE)
    except OSError:  # some containers do not show it
        return {}
    return {name: found[1].strip()} if found else {}


def _lock_tags(root: Path) -> dict[str, str]:
    """Return tags on the lock whose torch is the installed one: cpu.lock and gpu.lock never pin the same build."""
    installed = (version_of("torch") or "").partition("+")[0]
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
