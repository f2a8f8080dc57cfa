"""Verify files of an unfinished run by their recorded digests."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dagrpo.utils.checksummed_json import Damaged
from dagrpo.utils.manifest import FileEntry, fault_of, fault_of_size

THREADS = 4  # hashing waits for the disk, and leaves Python free


def require_whole(folder: Path, entries: Mapping[str, Any], suffixes: Collection[str]) -> None:
    """Check that the files below a folder with these suffixes are those listed, with unchanged bytes.

    `entries`: per name, the fields of a FileEntry. Raises Damaged, which names the first one that is missing, truncated, changed
    or not listed.
    """
    for path in sorted(folder.rglob("*")):
        if path.suffix in suffixes and str(path.relative_to(folder)) not in entries:
            raise Damaged(path, "does not belong there")
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(require_whole_file, map(folder.joinpath, entries), entries.values()))


def require_whole_file(path: Path, entry: Mapping[str, Any]) -> None:
    """Check one file. Raises Damaged if it is missing, truncated or changed."""
    _require(fault_of, path, entry)


def require_whole_size(path: Path, entry: Mapping[str, Any]) -> None:
    """Check one file without reading it. Raises Damaged if it is missing, or of another length."""
    _require(fault_of_size, path, entry)


def _require(fault: Callable[[Path, FileEntry], str | None], path: Path, entry: Mapping[str, Any]) -> None:
    if found := fault(path, FileEntry(**entry)):
        raise Damaged(path, found)
