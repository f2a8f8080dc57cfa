"""The files of a folder as its manifest.json lists them, and whether a file is still what was written.

Not here: what else the manifest of a checkpoint says (`checkpoints.manifest`).
"""

from dataclasses import dataclass
from pathlib import Path

from dagrpo.errors import UserError
from dagrpo.file_names import is_below
from dagrpo.files import read_object, sha256_of
from dagrpo.visible import shown

MANIFEST = "manifest.json"  # stands for the folder that it is in, and lists its files


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file, as it was written."""

    sha256: str
    bytes: int


def entry_of(path: Path) -> FileEntry:
    """What a list says about a file. Reads it."""
    return FileEntry(sha256=sha256_of(path), bytes=path.stat().st_size)


def fault_of(path: Path, entry: FileEntry) -> str | None:
    """How a file differs from what was written, such as "is missing"; None where it does not. Reads it."""
    fault = fault_of_size(path, entry)
    if fault is None and sha256_of(path) != entry.sha256:
        return "is changed (its sha256 is not that of what was written)"
    return fault


def fault_of_size(path: Path, entry: FileEntry) -> str | None:
    """The cheap part of `fault_of`: no file is read."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if size == entry.bytes:
        return None
    return f"is {'truncated' if size < entry.bytes else 'changed'} ({size:,} bytes, and {entry.bytes:,} were written)"


def listed_files(manifest: Path) -> dict[str, FileEntry]:
    """The files of a folder by their names. UserError: the manifest lists none, or a name that leads out of the folder."""
    files = read_object(manifest).get("files")
    if not isinstance(files, dict):
        raise _no_list(manifest, "it has no files")
    return {name: _entry(manifest, name, entry) for name, entry in files.items()}


def _entry(manifest: Path, name: str, entry: object) -> FileEntry:
    if not is_below(name):
        raise _no_list(manifest, shown(name))
    match entry:
        case {"sha256": str(sha256), "bytes": int(size)}:
            return FileEntry(sha256=sha256, bytes=size)
    raise _no_list(manifest, shown(name))


def _no_list(manifest: Path, fault: str) -> UserError:
    return UserError(
        f"{manifest} does not list its files by name, sha256 and bytes ({fault}): delete it and run the stage that makes it."
    )
