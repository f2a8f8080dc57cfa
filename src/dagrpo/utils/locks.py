"""Exclusive per-path lock on a file, and the identity of its holder.

One process at a time. A lock of another machine need not reach this one: a note beside the lock names its holder, who touches it
while at work. The path is free when the holder is known to be gone, or has not touched the note for SECONDS_OF_SILENCE.
"""

import errno
import fcntl
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

import psutil
from pydantic import TypeAdapter, ValidationError

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.utils import slurm
from dagrpo.utils.console import say
from dagrpo.utils.files import write_json

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


SECONDS_TO_WAIT = 60.0  # for a process that ends after a signal to stop
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_QUESTIONS = 5.0  # to SLURM
SECONDS_BETWEEN_SIGNS = 15.0
SECONDS_OF_SILENCE = 300.0  # NFS may show a change a minute late
LONGEST_COMMAND = 100
LONGEST_HOST = 64
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})  # of NFS without its lock service, and of Lustre


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that holds a path exclusively."""

    process: Process
    command: str
    executor: str = ""  # of Snakemake, to which it gives its jobs; "": they run on its own machine
    jobs: str = ""  # their name in SLURM's queue
    cluster: str = ""  # the name of that SLURM

    def __str__(self) -> str:
        where = "" if self.process.is_here else f" on {one_line(self.process.host, LONGEST_HOST)}"
        job = f", SLURM job {one_line(self.process.slurm_job, LONGEST_HOST)}" if self.process.slurm_job else ""
        return f"`{one_line(self.command, LONGEST_COMMAND)}` (process {self.process.pid}{where}{job})"


_NOTED = TypeAdapter(Holder)


def noted_holder(note: Path) -> Holder | None:
    """Return the holder that a note names; None if the note is missing or damaged."""
    try:
        return _NOTED.validate_json(note.read_bytes(), strict=True)
    except (OSError, ValidationError):
        return None


def is_silent(note: Path) -> bool:
    """Return True if the holder has not touched its note for SECONDS_OF_SILENCE, by the clock of the disk that it is on."""
    try:
        with tempfile.NamedTemporaryFile(dir=note.parent, prefix=".now") as now:
            return os.fstat(now.fileno()).st_mtime - note.stat().st_mtime > SECONDS_OF_SILENCE
    except OSError:
        return False


@contextmanager
def _signs_of_life(note: Path, own: Process) -> Iterator[None]:
    """Touch a note from time to time while it names this process: after a long silence, as of a suspended machine, it is another's."""
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(SECONDS_BETWEEN_SIGNS):
            with suppress(OSError):  # removed, or the disk is away
                if _names(note, own):
                    os.utime(note)

    threading.Thread(target=touch, daemon=True, name="signs-of-life").start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def exclusive_access(path: Path, lock: Path, patience: float | None = None) -> Iterator[int]:
    """Exclude every other process from this path, by a lock on the file `lock`. Not for threads.

    Yields the descriptor of that file: a child that inherits it holds the lock, too, and keeps it if this process is killed. Raises
    UserError naming another process that has held the path for `patience` seconds (None: a minute; 0: it does not wait), and where the
    disk of `lock` has no file locks.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        _wait_for(file, path, lock, patience)
        note, own = _note(lock), Process.current()
        write_json(note, asdict(Holder(process=own, command=command_of(sys.argv))))
        with _signs_of_life(note, own):
            try:
                yield file.fileno()
            finally:
                if _names(note, own):
                    note.unlink(missing_ok=True)  # another machine need not ask whether this process is gone


def _names(note: Path, process: Process) -> bool:
    holder = noted_holder(note)
    return holder is not None and holder.process == process


def _wait_for(file: IO[str], path: Path, lock: Path, patience: float | None) -> None:
    if _is_locked(file, lock):
        return
    if patience != 0:
        say(f"Waiting for {_holder(lock)} to end, which writes {path}, too.")
    deadline = time.monotonic() + (SECONDS_TO_WAIT if patience is None else patience)
    while not _is_locked(file, lock):
        if time.monotonic() > deadline:
            raise UserError(
                f"{path} is being written by {_holder(lock)}: wait for it to end, or stop it.{_about_silence(lock)}"
            )
        time.sleep(SECONDS_BETWEEN_QUESTIONS if _is_elsewhere(lock) else SECONDS_BETWEEN_LOOKS)


def _is_locked(file: IO[str], lock: Path) -> bool:
    """Try to lock the file; return True if no other process is at work. Raises UserError if its disk has no file locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise UserError(
            f"{lock} cannot be locked ({error.strerror}): put its folder, {lock.parent}, on a disk with file locks, or mount "
            "this one with them."
        ) from error
    holder = noted_holder(_note(lock))
    if holder is None or holder.process.is_on_this_machine or holder.process.is_gone or is_silent(_note(lock)):
        return True
    fcntl.flock(file, fcntl.LOCK_UN)  # a lock reaches every process of its machine, and need not reach another one
    return False


def _is_elsewhere(lock: Path) -> bool:
    holder = noted_holder(_note(lock))
    return holder is not None and not holder.process.is_on_this_machine


def _about_silence(lock: Path) -> str:
    """Return what helps where the holder's machine is gone, and SLURM does not know of it."""
    if not _is_elsewhere(lock):
        return ""
    return f" If its machine is gone, that is noticed {SECONDS_OF_SILENCE:.0f} seconds after its end."


def _note(lock: Path) -> Path:
    return lock.with_suffix(".json")


def _holder(lock: Path) -> str:
    """Return the name of the process that a note names; if that has ended, of a child process that has the lock open.

    If no process of this user has the lock open, return how to find the holder.
    """
    holder = noted_holder(_note(lock))
    if holder is not None and not holder.process.is_gone:
        return str(holder)
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):  # it has ended, or is another user's
            has_it_open = any(file.path == str(lock.resolve()) for file in process.open_files())
            if has_it_open and process.pid != os.getpid():
                return str(Holder(process=Process.running(process.pid), command=command_of(process.cmdline())))
    return f"another process (`fuser -v {lock.resolve()}` shows it to root)"


def command_of(words: Sequence[str]) -> str:
    """Return a command line as it is shown: without the path of a program, and without its interpreter."""
    own = words[1:] if "python" in words[0] and len(words) > 1 else words
    return one_line(" ".join([Path(own[0]).name, *own[1:]]), LONGEST_COMMAND)
