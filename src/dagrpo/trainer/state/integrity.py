"""Verify files of an unfinished run by their recorded digests."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from dagrpo.utils.checksummed_json import Damaged
from dagrpo.utils.manifest import FileEntry, fault_of, fault_of_size

THREADS = 4  # hashing waits for the disk, and leaves Python free


def require_whole(folder: Path, entries: Mapping[str, Any], suffixes: Collection[str]) -> None:
    """Check that the files below a folder with these suffixes are those listed, with unchanged bytes.

    `entries`: per name, `sha256` and `bytes`. Raises Damaged, which names the first one that is missing, truncated, changed or not listed.
    """
    for path in sorted(folder.rglob("*")):
        if path.suffix in suffixes and str(path.relative_to(folder)) not in entries:
            raise Damaged(path, "does not belong there")
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(partial(_require_whole_file, folder), entries, entries.values()))


def _require_whole_file(folder: Path, name: str, entry: Mapping[str, Any]) -> None:
    require_whole_file(folder / name, entry)


def require_whole_file(path: Path, entry: Mapping[str, Any]) -> None:
    """Check one file. Raises Damaged if it is missing, truncated, changed or not described."""
    _require(fault_of, path, entry)


def require_whole_size(path: Path, entry: Mapping[str, Any]) -> None:
    """Check one file without reading it. Raises Damaged if it is missing, of another length or not described."""
    _require(fault_of_size, path, entry)


def _require(fault: Callable[[Path, FileEntry], str | None], path: Path, entry: Mapping[str, Any]) -> None:
    match entry:
        case {"sha256": str(sha256), "bytes": int(size)}:
            if found := fault(path, FileEntry(sha256=sha256, bytes=size)):
                raise Damaged(path, found)
        case _:
            raise Damaged(path, "is not described by sha256 and bytes")
