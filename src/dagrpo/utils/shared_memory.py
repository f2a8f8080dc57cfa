"""Removal of shared memory that a killed server leaves behind.

SGLang and Python's multiprocessing choose the names themselves and remove them on an orderly end only; a server is killed. So the names
are noted while it lives.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")
NAMES = ("sglang_loads_", "sem.mp-")  # load reports of schedulers; semaphores
NOTE = "shared_memory"  # a file in the server's scratch folder: a path per line


def note(scratch: Path, group: int) -> None:
    """Add the shared memory that a group's processes have mapped to the note."""
    file = scratch / NOTE
    noted = set(_noted(file)) if file.exists() else set()
    mapped = {path for process in _members(group) for path in _mapped(process)}
    if mapped - noted:
        file.write_bytes(b"".join(bytes(path) + b"\n" for path in sorted(mapped | noted)))


def remove_noted(scratch: Path) -> None:
    """Remove the noted shared memory, if any."""
    with suppress(FileNotFoundError):  # never noted: the server was not ready
        for path in _noted(scratch / NOTE):
            with suppress(OSError, ValueError):  # ValueError: a NUL in a damaged note
                path.unlink(missing_ok=True)


def _noted(file: Path) -> Iterator[Path]:
    return filter(_is_shared, map(_path, file.read_bytes().split(b"\n")))


def _members(group: int) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):  # it has ended
            if os.getpgid(int(folder.name)) == group:
                yield int(folder.name)


def _mapped(process: int) -> Iterator[Path]:
    with suppress(OSError):  # it has ended
        for line in Path(f"/proc/{process}/maps").read_bytes().split(b"\n"):
            yield from filter(_is_shared, map(_path, line.split(maxsplit=5)[5:]))


def _path(name: bytes) -> Path:
    """Return the path for a name of any bytes, which need not be text."""
    return Path(os.fsdecode(name))


def _is_shared(path: Path) -> bool:
    return path.parent == MEMORY and path.name.startswith(NAMES)
