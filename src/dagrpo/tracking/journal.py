"""What a stage writes down about its run while it works: one folder per execution, one event per line.

A stage does not talk to MLflow: importing it takes several seconds, and a server may go away. It appends to a journal
in `.state/tracking/<execution>/`, which is delivered to MLflow later (`dagrpo.tracking.delivery`). Whatever kills a
stage, what it wrote until then is kept, and a journal without an end whose process is gone is a run that was killed.
"""

import errno
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from dagrpo.errors import UserError
from dagrpo.files import digest_of, open_regular, read_json, write_json
from dagrpo.tracking.environment import Process
from dagrpo.tracking.events import LONGEST_LINE, Event, event_of

FOLDER = Path(".state/tracking")
EVENTS = "events.jsonl"
DAMAGED = "events.damaged"
LONGEST_END = 200  # bytes of an end event, generously
FILES = "files"  # snapshots of artifacts and tables
PROGRESS = "progress.json"  # how much of the journal is in MLflow, and in which run
logger = logging.getLogger(__name__)


def now_ms() -> int:
    """Milliseconds since 1970, MLflow's unit of time."""
    return time.time_ns() // 1_000_000


class Journal:
    """The writing end. Every method may raise OSError (a full disk)."""

    def __init__(self, folder: Path, clock: Callable[[], int]) -> None:
        self.folder = folder
        self._clock = clock
        self._file = os.open(folder / EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._snapshots = 0

    @classmethod
    def begin(cls, root: Path, stage: str, start: Mapping[str, Any], clock: Callable[[], int] = now_ms) -> "Journal":
        """A new journal that a reader either sees with its start event or not at all. `clock`: milliseconds since 1970."""
        folder = root.resolve() / FOLDER / f"{clock()}-{stage}-{uuid.uuid4().hex[:8]}"
        temporary = folder.with_name(f".{folder.name}")
        temporary.mkdir(parents=True)
        journal = cls(temporary, clock)
        journal.write("start", process=asdict(Process.current()), **start)
        os.fsync(journal._file)  # a power cut must not leave a journal that cannot be read
        temporary.rename(folder)
        journal.folder = folder
        return journal

    def write(self, event: str, **content: object) -> None:
        """Append one event, whole, in one system call."""
        text = json.dumps({"event": event, "time": self._clock(), **content}, separators=(",", ":"), allow_nan=False)
        line = text.encode() + b"\n"
        if os.write(self._file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder / EVENTS))

    def new_snapshot(self, suffix: str) -> Path:
        """A name in the journal's folder for a file that the event to come refers to."""
        self._snapshots += 1
        path = self.folder / FILES / f"{self._snapshots:05d}{suffix}"
        path.parent.mkdir(exist_ok=True)
        return path

    def close(self) -> None:
        os.close(self._file)


def has_end(folder: Path) -> bool:
    """True when the stage has said how it ended."""
    with open_regular(folder / EVENTS) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_END))
        return file.read().rstrip().rpartition(b"\n")[2].startswith(b'{"event":"end"')


def last_sign_of_life(folder: Path) -> int:
    """When the journal was last written to, in milliseconds since 1970."""
    return (folder / EVENTS).stat().st_mtime_ns // 1_000_000


def size_of(folder: Path) -> int:
    """The bytes written so far."""
    return (folder / EVENTS).stat().st_size


def progress_of(folder: Path) -> tuple[int, str]:
    """How many bytes of the journal are in MLflow, and the id of its run; 0 and nothing before the first delivery.

    Nothing, too, where that cannot be read: what is delivered twice changes nothing.
    """
    try:
        progress = read_json(folder / PROGRESS)
        offset, run_id = int(progress["offset"]), str(progress["run_id"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return 0, ""
    return (offset, run_id) if 0 <= offset <= size_of(folder) else (0, "")


def delivered_bytes(folder: Path) -> int:
    """How many bytes of the journal are in MLflow."""
    return progress_of(folder)[0]


def remember_progress(folder: Path, offset: int, run_id: str) -> None:
    """Let the next delivery begin at byte `offset`."""
    write_json(folder / PROGRESS, {"offset": offset, "run_id": run_id})


def forget_progress(folder: Path) -> None:
    """Let the next delivery begin with the first event."""
    with suppress(OSError):  # what cannot be removed is read as nothing, or is delivered from where it says
        (folder / PROGRESS).unlink()


def journals(root: Path) -> list[Path]:
    """The folders of all journals that can be read and are not yet in MLflow as a whole, oldest first."""
    return [folder for folder in _folders(root) if _damage_of(folder) is None]


def set_aside_damaged(root: Path) -> None:
    """Rename what cannot be read, with a warning that names it: the others are delivered without it."""
    for folder in _folders(root):
        damage = _damage_of(folder)
        if damage is None:
            continue
        with suppress(FileNotFoundError):  # set aside by another process meanwhile
            try:
                (folder / EVENTS).rename(folder / DAMAGED)
                where = f"it is kept as {folder / DAMAGED}"
            except PermissionError as error:
                where = f"it stays where it is ({error.strerror})"
            logger.warning("%s cannot be read (%s), so its run is not in MLflow: %s", folder / EVENTS, damage, where)


def _folders(root: Path) -> list[Path]:
    return sorted(path.parent for path in (root / FOLDER).glob(f"[!.]*/{EVENTS}"))


def _damage_of(folder: Path) -> str | None:
    """Why a journal cannot be read; None: it can, or is gone, since another process has delivered it."""
    try:
        start_of(folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror)
    except UserError as error:
        return str(error)
    return None


def read_events(folder: Path, offset: int = 0) -> tuple[list[Event], int]:
    """The events from byte `offset` on, and where to read on. A line that is not whole yet is left for later."""
    events: list[Event] = []
    with open_regular(folder / EVENTS) as file:
        file.seek(offset)
        while (line := _whole_line(file)) is not None:
            offset = file.tell()
            if (event := _parse(folder, line)) is not None:
                events.append(event)
    return events, offset


def _whole_line(file: BinaryIO) -> bytes | None:
    """The next line, or the beginning of one that is far too long; None where there is none yet."""
    line = rest = file.readline(LONGEST_LINE + 1)
    while rest and not rest.endswith(b"\n"):
        rest = file.readline(LONGEST_LINE)
    return line if rest else None


def start_of(folder: Path) -> Event:
    """The first event: the record of the execution, its process, and where it is to be recorded.

    UserError, or OSError: it cannot be read.
    """
    with open_regular(folder / EVENTS) as file:
        start = event_of(file.readline(LONGEST_LINE + 1))
    if start["event"] != "start":
        raise UserError(f"it begins with {start['event']}")
    return start


def identity(start: Event) -> str:
    """The same for every execution that writes the same outputs of the same variation: two of them never run at once."""
    record = start["record"]
    return digest_of(
        [record["experiment"], start.get("variation", ""), record["seed"], record["stage"], sorted(record["outputs"])]
    )


def discard(folder: Path) -> None:
    """Remove a journal, in one step for other readers."""
    hidden = folder.with_name(f".{folder.name}")
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _parse(folder: Path, line: bytes) -> Event | None:
    try:
        return event_of(line)
    except UserError as error:  # cut off by a full disk, say; what follows it is good again
        logger.warning("a line of %s is left out of the record: %s", folder / EVENTS, error)
        return None
