"""Files of a folder listed in its manifest.json, with integrity checks.

`checkpoints.manifest` has the rest of a checkpoint's manifest.
"""

import platform
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.utils.file_names import is_below
from dagrpo.utils.files import atomic_file, read_object, sha256_of

MANIFEST = "manifest.json"  # stands for the folder that it is in, and lists its files
NOTES = Path(".state/read")  # a note for each large file of a checkpoint that was read, by machine and inode
_NOTE = re.compile(r"(\d+ \d+ \d+) ([0-9a-f]{64})")  # size and times of the file that was read, and its sha256
FEWEST_NOTED = 16 << 20  # bytes: a smaller file is read in 10 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """The recorded length and digest of one file."""

    sha256: str
    bytes: int


def entry_of(path: Path, *, noted: bool = False) -> FileEntry:
    """Return a file's entry for a list. Reads the file. `noted`: with a note, so that `fault_since_read` does not read it again."""
    return FileEntry(sha256=(noted_sha256 if noted else sha256_of)(path), bytes=path.stat().st_size)


def fault_of(path: Path, entry: FileEntry) -> str | None:
    """Return how a file differs from its entry, such as "is missing"; None if it does not. Reads the file."""
    return _fault_of(path, entry, sha256_of)


def fault_since_read(path: Path, entry: FileEntry) -> str | None:
    """Return the fault that `fault_of` finds. A file that was read on this machine is read again only if its time has changed."""
    fault = _fault_of(path, entry, noted_sha256)
    return fault and fault_of(path, entry)  # a note may be damaged


def _fault_of(path: Path, entry: FileEntry, sha256: Callable[[Path], str]) -> str | None:
    fault = fault_of_size(path, entry)
    if fault is None and sha256(path) != entry.sha256:
        return "is changed (its sha256 is not that of what was written)"
    return fault


def noted_sha256(path: Path) -> str:
    """Return a file's sha256, by its note if inode, times and size are those of the note; else read the file and note it.

    Without a note that can be read or written, the file is read each time.
    """
    if path.stat().st_size < FEWEST_NOTED or not NOTES.parent.is_dir():
        return sha256_of(path)
    inode, version = _version(path)
    note = NOTES / f"{platform.node()}-{inode}"
    with suppress(OSError, UnicodeDecodeError):
        if (words := _NOTE.fullmatch(note.read_text())) and words[1] == version:
            return words[2]
    digest = sha256_of(path)
    if _version(path) == (inode, version):  # else another file has taken its place, or it was written to
        with suppress(OSError):
            NOTES.mkdir(exist_ok=True)
            with atomic_file(note) as temporary:
                temporary.write_text(f"{version} {digest}")
    return digest


def _version(path: Path) -> tuple[str, str]:
    """Return what names a file's inode, and its size and times. The time of its last change cannot be set back, as that of a write can."""
    stat = path.stat()
    return f"{stat.st_dev}-{stat.st_ino}", f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"


def fault_of_size(path: Path, entry: FileEntry) -> str | None:
    """Return the fault that `fault_of` finds without reading the file: missing, or of another length."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if size == entry.bytes:
        return None
    return f"is {'truncated' if size < entry.bytes else 'changed'} ({size:,} bytes, and {entry.bytes:,} were written)"


def listed_files(manifest: Path) -> dict[str, FileEntry]:
    """Return a folder's files by name. Raises UserError if the manifest lists none, or a name that leads out of the folder."""
    files = read_object(manifest).get("files")
    if not isinstance(files, dict):
        raise _no_list(manifest, "it has no files")
    return {name: _entry(manifest, name, entry) for name, entry in files.items()}


def _entry(manifest: Path, name: str, entry: object) -> FileEntry:
    if not is_below(name):
        raise _no_list(manifest, brief(name))
    match entry:
        case {"sha256": str(sha256), "bytes": int(size)}:
            return FileEntry(sha256=sha256, bytes=size)
    raise _no_list(manifest, brief(name))


def _no_list(manifest: Path, fault: str) -> UserError:
    return UserError(
        f"{manifest} does not list its files by name, sha256 and bytes ({fault}): delete it and run the stage that makes it."
    )
