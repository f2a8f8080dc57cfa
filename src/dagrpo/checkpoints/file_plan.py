"""Planned checkpoint files: name, exact length, and how to write them.

A plan costs no memory and no reading of weights, so a model that cannot be converted is refused before anything is written.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """One file. The name is relative to the checkpoint's folder, with forward slashes; `write` gives `bytes` bytes."""

    name: str
    bytes: int
    write: Callable[[BinaryIO], None]


def planned_content(name: str, content: bytes) -> PlannedFile:
    """Plan a file whose content is known already."""

    def write(file: BinaryIO) -> None:
        file.write(content)

    return PlannedFile(name=name, bytes=len(content), write=write)


def planned_copy(name: str, path: Path) -> PlannedFile:
    """Plan a byte-for-byte copy of another file."""

    def write(file: BinaryIO) -> None:
        with path.open("rb") as original:
            shutil.copyfileobj(original, file)

    return PlannedFile(name=name, bytes=path.stat().st_size, write=write)


def write_planned(folder: Path, file: PlannedFile) -> Path:
    """Write one file into a folder, replacing an existing one; it is not fsynced."""
    path = folder / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as opened:
        file.write(opened)
        assert opened.tell() == file.bytes, f"{path} was planned with {file.bytes} bytes"
    return path


def write_hashed(folder: Path, file: PlannedFile) -> str:
    """Write a file as `write_planned` does, and return its sha256, hashed while it is written instead of read again."""
    with ThreadPoolExecutor(1) as thread:
        digest = hashlib.sha256()

        def write(opened: BinaryIO) -> None:
            file.write(cast(BinaryIO, _Hashed(opened, digest, thread)))

        write_planned(folder, PlannedFile(name=file.name, bytes=file.bytes, write=write))
    return digest.hexdigest()


class _Hashed:
    """A file whose content is hashed by a thread beside the writing."""

    def __init__(self, file: BinaryIO, digest: Any, thread: ThreadPoolExecutor) -> None:
        self._file, self._digest, self._thread = file, digest, thread

    def write(self, content: bytes) -> int:
        hashing = self._thread.submit(self._digest.update, content)
        written = self._file.write(content)
        hashing.result()
        return written


def write_all(folder: Path, files: Iterable[PlannedFile]) -> None:
    """Write files into an existing folder."""
    for file in files:
        write_planned(folder, file)
