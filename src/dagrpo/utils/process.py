"""Identity of a process: number, start, machine and boot."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

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
