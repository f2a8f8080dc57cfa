"""Errors of rollout servers, and their reasons in a server's log."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from dagrpo.core.errors import TransientError, UserError
from dagrpo.core.types import Completion
from dagrpo.utils.failures import NEARLY_FULL, disk_of, free_on

TAIL_BYTES = 1 << 16
_PREFIX = re.compile(r"^\[\d{4}-[^\]]*\]\s*|^(INFO|WARNING):\s*")
_REASON = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit)(: .*)?$|^ERROR: |\[Errno \d+\]")

_SIGBUS = re.compile(r"exit ?code:? -7\b", re.IGNORECASE)
OF_SIGBUS = (
    "SIGBUS, with which a write to a file in memory ends where no room is left: make room in /dev/shm and in the folder for temporary "
    "files (`df -h /dev/shm /tmp`), then run again"
)
_TAKEN_PORT = re.compile(r"address already in use|port \d+.* in use", re.IGNORECASE)


class ServerError(UserError):
    """Error of a rollout server that cannot be used. The message says why, where its log is, and what to do."""


class ServerLost(ServerError, TransientError):
    """Error of this process's own server, dead at work. If it was the last, or all are needed, the stage restarts with a new one."""


class ServerGone(ServerError):
    """Error of one of several servers that died. The others continue: its requests can be sent to them again."""


class RequestsAborted(ServerError):
    """Error of requests that this process has aborted."""

    def __init__(self, completions: Sequence[Completion] = ()) -> None:
        super().__init__("The requests were aborted, as enough others had finished.")
        self.completions = completions  # of each request, as far as it was sampled; (): none was sent


class ServerUnreachable(ServerError):
    """Error of a server that does not answer at all, with no sign that it is dead."""


class ServerAway(ServerUnreachable, TransientError):
    """Error of a server on another node of this training: it is started again, or the stage is."""


def reason_in(log: Path, start: int = 0) -> str | None:
    """Return the last line of a log that names a reason, such as an exception; None if no such line follows byte `start`.

    It is seldom the log's last line: SGLang continues logging while it shuts down.
    """
    lines = _last_lines(log, start)
    if any(_SIGBUS.search(line) for line in lines):
        return OF_SIGBUS
    return next((line for line in reversed(lines) if _REASON.search(line)), None)


def cause_of_death(log: Path, start: int, written: Iterable[Path]) -> str | None:
    """Return a full disk among those that a dead server has written to, or the reason in its log: its own guess is a lack of memory."""
    return full_disk_among(written) or reason_in(log, start)


def full_disk_among(written: Iterable[Path]) -> str | None:
    """Return a full disk among those that a server writes to: it cannot even log that it died of that."""
    disks = {disk_of(path): path for path in written}
    full = [f"{disk}, which holds {path}" for disk, path in disks.items() if free_on(disk) < NEARLY_FULL]
    return f"no room is left on {full[0]}: make room, then run again" if full else None


def names_a_taken_port(log: Path) -> bool:
    """Return True if a server's log ends with the complaint that another process listens on its port."""
    return any(_TAKEN_PORT.search(line) for line in _last_lines(log, 0))


def last_line_of(log: Path) -> str:
    """Return the last line that is not empty, without its time stamp."""
    return ([*_last_lines(log, 0)] or ["its log is empty"])[-1]


def _last_lines(log: Path, start: int) -> list[str]:
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    lines = (_PREFIX.sub("", line).strip() for line in text.splitlines())
    return [line for line in lines if line]
