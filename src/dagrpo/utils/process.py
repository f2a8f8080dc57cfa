"""Identity of a process: number, start, machine, boot and SLURM job."""

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from dagrpo.utils import slurm

_NAMESPACE = Path("/proc/self/ns/pid")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ZOMBIE = "Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that cannot be confused with a later one of the same number, nor with another one when the clock is set."""

    pid: int
    started: float  # clock ticks since the machine was booted
    host: str
    boot: str = ""  # the kernel's id of that boot; "": not known
    namespace: int = 0  # in which it has that number, as containers have their own; 0: not known
    slurm_job: str = ""  # in which it runs; "": in none
    slurm_cluster: str = ""  # whose job that is; "": not known

    @classmethod
    def current(cls) -> "Process":
        process, job = cls.running(os.getpid()), slurm.own_job()
        return replace(process, slurm_job=job, slurm_cluster=slurm.own_cluster()) if job else process

    @classmethod
    def running(cls, pid: int) -> "Process":
        """Return a process of this machine. Raises ProcessLookupError if none has that number."""
        _, started = _state_and_start(pid)
        return cls(pid=pid, started=started, host=socket.gethostname(), boot=_boot(), namespace=_namespace())

    @property
    def is_on_this_machine(self) -> bool:
        """Return True if it runs, or ran, on this machine, in whatever container."""
        return self.host == socket.gethostname()

    @property
    def is_here(self) -> bool:
        """Return True if it runs, or ran, where this process can see it."""
        return self.is_on_this_machine and self.namespace in (0, _namespace())

    @property
    def is_gone(self) -> bool:
        """Return True if it certainly runs no more; of a process that cannot be seen from here only SLURM can say so."""
        if self.is_on_this_machine and self.boot and self.boot != _boot():
            return True
        if not self.is_here:
            return bool(self.slurm_job) and slurm.has_ended(self.slurm_job, self.slurm_cluster)
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


def _namespace() -> int:
    try:
        return _NAMESPACE.stat().st_ino
    except OSError:
        return 0


def _state_and_start(pid: int) -> tuple[str, int]:
    """Return a process's state and start, in clock ticks since the boot: fields 3 and 22 of proc(5)."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    fields = stat.rpartition(")")[2].split()  # the name before it may have spaces and brackets
    return fields[0], int(fields[19])
