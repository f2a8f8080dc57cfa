"""Full disks as errors that name file, disk and free space.

Writers report it in many ways: Arrow names no file, safetensors raises its own error, torch only reports an unexpected position.
Here all become an OSError that names the file that was to be written.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # a full disk, a quota, a limit for files
NEARLY_FULL = 1 << 20  # bytes free, below which an error without a reason counts as a full disk
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # as Rust's libraries write it
_OF_TORCH = "inline_container.cc"  # its writer, whatever went wrong with it


class NotEnoughRoom(OSError):
    """An error raised before anything was written: its text has the bytes needed."""


@contextmanager
def full_disk_naming(path: Path) -> Iterator[None]:
    """Turn a writer's error about a full disk into an OSError that names `path`; other errors pass unchanged."""
    try:
        yield
    except Exception as error:
        number = _number_of(error, path)
        if number is None:
            raise
        if isinstance(error, NotEnoughRoom):
            raise NotEnoughRoom(number, error.strerror, str(path)) from error
        raise OSError(number, os.strerror(number), str(path)) from error


def no_room(error: BaseException) -> bool:
    """Return True if a full disk, a quota or a limit for files stopped a write."""
    return isinstance(error, OSError) and error.errno in NO_ROOM


def about_room(error: OSError) -> str:
    """Return the message about such an error. If the error names no file, the disk is unknown."""
    if error.filename is None:
        return f"a disk: {error.strerror}: make room, then run again."
    if error.errno == errno.EFBIG:
        return f"{error.filename}: {error.strerror}: raise the limit for the size of files (ulimit -f), then run again."
    disk = disk_of(Path(str(error.filename)))
    if error.errno == errno.EDQUOT:
        return f"{error.filename}: {error.strerror}: make room for your files on {disk}, or have the quota raised, then run again."
    if isinstance(error, NotEnoughRoom):
        return f"{error.filename}: {error.strerror}: make room on {disk}, then run again."
    return (
        f"{error.filename}: {error.strerror}: it takes more than the {free_on(disk):,} bytes that are free on {disk}: "
        "make room, then run again."
    )


def disk_of(path: Path) -> Path:
    """Return the mount point of the disk that holds a path, or would hold it."""
    place = path.absolute()
    while not os.path.ismount(place):
        place = place.parent
    return place


def free_on(path: Path) -> int:
    """Return the bytes that an ordinary user may still write there."""
    return shutil.disk_usage(path).free


def _number_of(error: Exception, path: Path) -> int | None:
    """Return ENOSPC, EDQUOT or EFBIG if an error comes from one of them, else None."""
    if isinstance(error, OSError):
        return error.errno if error.errno in NO_ROOM else None
    match = _OS_ERROR.search(str(error))
    if match is not None and int(match[1]) in NO_ROOM:
        return int(match[1])
    gives_no_reason = _OF_TORCH in str(error)
    return errno.ENOSPC if gives_no_reason and free_on(disk_of(path)) < NEARLY_FULL else None
