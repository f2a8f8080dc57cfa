"""One process at a time for a path: a lock that the system releases however its holder ends, and that nobody can delete.

On this machine it is a socket of a name that is made of the path: no file, so `rm -rf .state` does not open it, and nothing
listens on it. A file lock holds it for other machines, as far as the file system reaches. Not for threads.
"""

import hashlib
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from dagrpo.console import say
from dagrpo.errors import UserError
from dagrpo.files import read_regular, write_json
from dagrpo.tracking.environment import Process
from dagrpo.visible import one_line

SECONDS_TO_WAIT = 60.0  # for one that was told to stop
SECONDS_BETWEEN_LOOKS = 0.2
LONGEST_COMMAND = 100
LONGEST_HOST = 64
MOST_BYTES_OF_A_NOTE = 1 << 20
LARGEST_PID = 1 << 22  # of Linux


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who has a path for itself."""

    process: Process
    command: str

    def __str__(self) -> str:
        where = "" if self.process.is_here else f" on {one_line(self.process.host, LONGEST_HOST)}"
        return f"`{one_line(self.command, LONGEST_COMMAND)}` (process {self.process.pid}{where})"


_NOTED = TypeAdapter(Holder)


def noted_holder(note: Path) -> Holder | None:
    """Whom a note names; None where there is none, or one that says nothing: anybody may have written it."""
    try:
        holder = _NOTED.validate_json(read_regular(note, MOST_BYTES_OF_A_NOTE), strict=True)
    except (OSError, ValidationError):
        return None
    return holder if 0 < holder.process.pid <= LARGEST_PID else None


@contextmanager
def alone_with(path: Path, lock: Path) -> Iterator[int]:
    """Keep every other process from this path; `lock` is the file for those on other machines.

    Yields the descriptor of the socket: a child that is given it holds the lock, too, and keeps it should this process be
    killed. UserError: another process has held the path for a minute; it is named.
    """
    deadline = time.monotonic() + SECONDS_TO_WAIT
    with ExitStack() as held:
        descriptor = held.enter_context(_socket_of(path, lock, deadline))
        _lock_for_other_machines(path, lock, deadline, held)
        yield descriptor


@contextmanager
def _socket_of(path: Path, lock: Path, deadline: float) -> Iterator[int]:
    told = False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        while not _binds(bound, path):
            if time.monotonic() > deadline:
                raise _refusal(path, lock)
            if not told:
                say(f"Waiting for {_holder(path, lock)} to end, which writes {path}, too.")
                told = True
            time.sleep(SECONDS_BETWEEN_LOOKS)
        yield bound.fileno()


def _binds(bound: socket.socket, path: Path) -> bool:
    try:
        bound.bind(f"\0{_name_of(path)}")
    except OSError:  # somebody else has the name: a socket has no other reason here
        return False
    return True


def _name_of(path: Path) -> str:
    return f"dagrpo-{hashlib.sha256(bytes(path.resolve())).hexdigest()[:32]}"


def _lock_for_other_machines(path: Path, lock: Path, deadline: float, held: ExitStack) -> None:
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        held.enter_context(FileLock(lock).acquire(timeout=max(0.0, deadline - time.monotonic())))
    except Timeout:
        raise _refusal(path, lock) from None
    write_json(_note(lock), asdict(Holder(process=Process.current(), command=_command(psutil.Process()))))


def _refusal(path: Path, lock: Path) -> UserError:
    return UserError(f"{path} is being written by {_holder(path, lock)}: wait for it to end, or stop it.")


def _note(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.json")


def _holder(path: Path, lock: Path) -> str:
    """The one that a note names; where that has gone, or the note has, the one that the system names."""
    holder = noted_holder(_note(lock))
    if holder is not None and not holder.process.is_gone:
        return str(holder)
    with suppress(psutil.Error, ProcessLookupError):
        for connection in psutil.net_connections("unix"):
            if connection.laddr == f"@{_name_of(path)}" and connection.pid:
                process = psutil.Process(connection.pid)
                return str(Holder(process=Process.running(process.pid), command=_command(process)))
    return "another process"


def _command(process: psutil.Process) -> str:
    return one_line(" ".join(process.cmdline()), LONGEST_COMMAND)
