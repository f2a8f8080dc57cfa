"""A checkpoint that is written file by file, so that a conversion that was killed goes on where it was.

Everything happens in one hidden folder beside the destination, `.NAME.convert.part`:

    lock           held by the process that works here
    journal.jsonl  a digest of what is being made, and for every finished file a line with its length and sha256
    checkpoint/    the files, moved to the destination when all are there

A file of an earlier run is believed only where its length and sha256 are those of the journal. What the journal cannot
know, such as a source that changed without a trace, the caller finds by comparing the whole with its source.
"""

import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from dagrpo.checkpoints.planned import PlannedFile, write_planned
from dagrpo.console import Advance
from dagrpo.errors import UserError
from dagrpo.files import canonical_json, fsync_file, recover_folder, replace_folder, require_space, write_text
from dagrpo.full_disk import full_disk_naming, no_room
from dagrpo.listing import FileEntry, entry_of, fault_of

LOCK, JOURNAL, CHECKPOINT = "lock", "journal.jsonl", "checkpoint"
_SECONDS_FOR_THE_LOCK = 1.0  # another process may be just leaving
_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A line of the journal: a file that is on the disk."""

    name: str
    entry: FileEntry

    def line(self) -> str:
        return canonical_json(asdict(self)) + "\n"


_RECORD = TypeAdapter(Record)


@contextmanager
def resumable_checkpoint(destination: Path, files: Sequence[PlannedFile], making: str) -> Iterator["Unfinished"]:
    """Yield the checkpoint to write, manifest last; it becomes `destination` when all went well.

    `making` names what is made: files of a killed run that made the same are kept. After a mistake of the user's or on
    a full disk nothing is. UserError: another process writes to `destination`.
    """
    work = work_folder(destination)
    with full_disk_naming(destination), _alone(work, destination):
        recover_folder(destination, keep=work)
        try:
            with ThreadPoolExecutor(_THREADS) as flushing, ThreadPoolExecutor(_THREADS) as hashing:
                yield Unfinished(work, files, making, hashing, flushing)
            replace_folder(work / CHECKPOINT, destination)
        except BaseException as error:
            if not _can_be_resumed(error):
                _empty(work)
            raise
        _empty(work)


def work_folder(destination: Path) -> Path:
    """Where a checkpoint is before it is whole."""
    return destination.parent / f".{destination.name}.convert.part"


class Unfinished:
    """The files of a checkpoint, some of them finished by an earlier run."""

    def __init__(
        self,
        work: Path,
        files: Sequence[PlannedFile],
        making: str,
        hashing: ThreadPoolExecutor,
        flushing: ThreadPoolExecutor,
    ) -> None:
        self.folder = work / CHECKPOINT
        self._journal = work / JOURNAL
        self._files, self._making = files, making
        self._hashing, self._flushing = hashing, flushing
        self._endings: list[Future[None]] = []
        self._lock = threading.Lock()
        self._finished = self._finished_before()
        self._remove_all_others()
        records = [Record(name=name, entry=entry).line() for name, entry in self._finished.items()]
        write_text(self._journal, "".join([f"{making}\n", *records]))
        self.resumed = len(self._finished)

    def write(self, shown: Advance) -> None:
        """Write what is not there yet. It goes to the disk and is hashed meanwhile; `settle` waits for the rest of it."""
        left = [file for file in self._files if file.name not in self._finished]
        require_space(self.folder, sum(file.bytes for file in left))
        shown.advance(self.resumed)
        for file in left:
            path = write_planned(self.folder, file)
            self._endings.append(self._hashing.submit(self._finish, file.name, path, shown))
            for ending in self._endings:
                if ending.done():
                    ending.result()

    def settle(self) -> dict[str, FileEntry]:
        """All files with length and sha256, once they are on the disk and in the journal."""
        for ending in self._endings:
            ending.result()
        return dict(sorted(self._finished.items()))

    def _finish(self, name: str, path: Path, shown: Advance) -> None:
        on_disk = self._flushing.submit(fsync_file, path)
        entry = entry_of(path)
        on_disk.result()
        with self._lock:
            self._finished[name] = entry
            with self._journal.open("a", encoding="utf-8") as journal:
                journal.write(Record(name=name, entry=entry).line())
            fsync_file(self._journal)
            shown.advance(note=name)

    def _finished_before(self) -> dict[str, FileEntry]:
        entries = {record.name: record.entry for record in _records(self._journal, self._making)}
        names = [file.name for file in self._files if file.name in entries]
        faults = self._hashing.map(lambda name: fault_of(self.folder / name, entries[name]), names)
        return {name: entries[name] for name, fault in zip(names, faults, strict=True) if fault is None}

    def _remove_all_others(self) -> None:
        self.folder.mkdir(exist_ok=True)
        for path in self.folder.rglob("*"):
            if path.is_file() and path.relative_to(self.folder).as_posix() not in self._finished:
                path.unlink()


def _records(journal: Path, making: str) -> Iterator[Record]:
    """Those of a journal of the same work, up to a line that is half written."""
    lines = journal.read_bytes().splitlines() if journal.exists() else []
    if lines[:1] != [making.encode()]:
        return
    for line in lines[1:]:
        try:
            yield _RECORD.validate_json(line)
        except ValidationError:
            return


@contextmanager
def _alone(work: Path, destination: Path) -> Iterator[None]:
    work.mkdir(parents=True, exist_ok=True)
    lock = FileLock(work / LOCK, timeout=_SECONDS_FOR_THE_LOCK)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"{destination} is being written by another conversion: wait for it, or give another folder."
        ) from None
    try:
        yield
    finally:
        if [path.name for path in work.iterdir()] == [LOCK]:
            (work / LOCK).unlink()  # who waits for it sees that it is gone, and makes another
            with suppress(OSError):  # who came meanwhile has made another
                work.rmdir()
        lock.release()


def _can_be_resumed(error: BaseException) -> bool:
    """An interrupt, or a disk or network that failed. A full disk gets its room back, a mistake would be repeated."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, OSError) and not no_room(error))


def _empty(work: Path) -> None:
    """Remove everything but the lock."""
    (work / JOURNAL).unlink(missing_ok=True)
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            path.unlink()
