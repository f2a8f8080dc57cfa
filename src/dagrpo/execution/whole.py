"""Whether an output is still what its provenance says; of a folder, also whether its files are what its manifest says."""

from pathlib import Path

from dagrpo.files import sha256_of
from dagrpo.listing import MANIFEST, FileEntry, fault_of, fault_of_size, listed_files


def is_whole(path: Path, digest: str) -> bool:
    """Whether an output is what its provenance says."""
    return broken_file(path, digest) is None


def broken_file(path: Path, digest: str, largest: int | None = None) -> Path | None:
    """The first file of an output that is missing or has other bytes; None where there is none.

    `largest`: of files of a folder with more bytes, only the size is looked at. Whoever opens a checkpoint reads its weights against the
    manifest; the tokenizer alone may be all that somebody opens.
    """
    if not _has(path, digest):
        return path
    listed = listed_files(path) if path.name == MANIFEST else {}
    return next((file for name, each in listed.items() if _is_broken(file := path.parent / name, each, largest)), None)


def _is_broken(file: Path, entry: FileEntry, largest: int | None) -> bool:
    is_read = largest is None or entry.bytes <= largest
    return (fault_of if is_read else fault_of_size)(file, entry) is not None


def _has(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_of(path) == digest
