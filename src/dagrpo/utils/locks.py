"""Exclusive per-path lock on a file, released by the system.

One process at a time.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import psutil
from pydantic import TypeAdapter, ValidationError

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.utils.console import say
from dagrpo.utils.files import write_json
from dagrpo.utils.process import Process

SECONDS_TO_WAIT = 60.0  # for a process that ends after a signal to stop
SECONDS_BETWEEN_LOOKS = 0.2
LONGEST_COMMAND = 100
LONGEST_HOST = 64
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})  # of NFS without its lock service, and of Lustre


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that holds a path exclusively."""

    process: Process
    command: str

    def __str__(self) -> str:
        where = "" if self.process.is_here else f" on {one_line(self.process.host, LONGEST_HOST)}"
        return f"`{one_line(self.command, LONGEST_COMMAND)}` (process {self.process.pid}{where})"


_NOTED = TypeAdapter(Holder)


def noted_holder(note: Path) -> Holder | None:
    """Return the holder that a note names; None if the note is missing or damaged."""
    try:
        return _NOTED.validate_json(note.read_bytes(), strict=True)
    except (OSError, ValidationError):
        return None


@contextmanager
def exclusive_access(path: Path, lock: Path, patience: float | None = None) -> Iterator[int]:
    """Exclude every other process from this path, by a lock on the file `lock`. Not for threads.

    Yields the descriptor of that file: a child that inherits it holds the lock, too, and keeps it if this process is killed. Raises
    UserError naming another process that has held the path for `patience` seconds (None: a minute), and where the disk of `lock` has
    no file locks.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        _wait_for(file, path, lock, patience)
        write_json(_note(lock), asdict(Holder(process=Process.current(), command=_command(psutil.Process()))))
        yield file.fileno()


def _wait_for(file: IO[str], path: Path, lock: Path, patience: float | None) -> None:
    if _is_locked(file, lock):
        return
    say(f"Waiting for {_holder(lock)} to end, which writes {path}, too.")
    deadline = time.monotonic() + (SECONDS_TO_WAIT if patience is None else patience)
    while not _is_locked(file, lock):
        if time.monotonic() > deadline:
            raise UserError(f"{path} is being written by {_holder(lock)}: wait for it to end, or stop it.")
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _is_locked(file: IO[str], lock: Path) -> bool:
    """Try to lock the file; return True on success. Raises UserError if its disk has no file locks."""
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
    return True


def _note(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.json")


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
                return str(Holder(process=Process.running(process.pid), command=_command(process)))
    return f"another process (`fuser -v {lock.resolve()}` shows it to root)"


def _command(process: psutil.Process) -> str:
    return one_line(" ".join(process.cmdline()), LONGEST_COMMAND)
