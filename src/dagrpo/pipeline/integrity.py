"""Integrity of outputs against provenance and manifest."""

from pathlib import Path

from dagrpo.utils.files import sha256_of
from dagrpo.utils.manifest import MANIFEST, FileEntry, fault_of, fault_of_size, listed_files


def is_whole(path: Path, digest: str) -> bool:
    """Return True if an output matches its recorded digest; for a folder, also if its files match its manifest."""
    return broken_file(path, digest) is None


def broken_file(path: Path, digest: str, largest: int | None = None) -> Path | None:
    """Return the first file of an output that is missing or has other bytes; None if it is intact.

    `largest`: for larger files of a folder only the size is compared. A reader of the checkpoint compares its weights with the
    manifest; the tokenizer, however, may be read alone.
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
