"""Names in shared memory that a killed server leaves behind: noted while it lives, removed when it is gone.

SGLang and Python's multiprocessing draw these names themselves and remove them on an orderly end only. A server is killed.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")
NAMES = ("sglang_loads_", "sem.mp-")  # what schedulers tell of their load; semaphores
NOTE = "shared_memory"  # a file in the server's scratch folder: a path per line


def note(scratch: Path, group: int) -> None:
    """Write down what the processes of a group have mapped, beside what was noted before."""
    file = scratch / NOTE
    noted = set(file.read_text().splitlines()) if file.exists() else set()
    mapped = {path for process in _members(group) for path in _mapped(process)}
    if mapped - noted:
        file.write_text("".join(f"{path}\n" for path in sorted(mapped | noted)))


def remove_noted(scratch: Path) -> None:
    """Remove what was noted, if anything was."""
    with suppress(OSError):  # never noted: the server was not ready
        for line in (scratch / NOTE).read_text().splitlines():
            path = Path(line)
            if path.parent == MEMORY and path.name.startswith(NAMES):
                path.unlink(missing_ok=True)


def _members(group: int) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):  # it has ended
            if os.getpgid(int(folder.name)) == group:
                yield int(folder.name)


def _mapped(process: int) -> Iterator[str]:
    with suppress(OSError):  # it has ended
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            path = Path(line.split(maxsplit=5)[-1])
            if path.parent == MEMORY and path.name.startswith(NAMES):
                yield str(path)
