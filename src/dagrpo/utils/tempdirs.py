"""Temporary directories tied to a live process by a lock.

The lock lies beside each; stale folders are removed on the next use.
"""

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dagrpo.utils.shared_memory import remove_noted

LOCK = ".lock"


@contextmanager
def temporary_folder(parent: Path, kind: str, mode: int = 0o700) -> Iterator[Path]:
    """Make an empty folder for this process, named after its kind and this machine; remove it at the end."""
    remove_abandoned(parent, kind)
    descriptor, name = tempfile.mkstemp(prefix=_prefix(kind), suffix=LOCK, dir=parent)
    os.close(descriptor)
    lock, folder = Path(name), Path(name.removesuffix(LOCK))
    try:
        with FileLock(lock):  # locked before the folder exists, so that it is never taken for an abandoned one
            folder.mkdir(mode=mode)
            try:
                yield folder
            finally:
                _remove(folder)
    finally:
        _forget(lock, folder)


def remove_abandoned(parent: Path, kind: str) -> None:
    """Remove this user's folders of this kind whose process is gone, as their free lock shows.

    A folder without a lock, or of another user, is left alone: every user may write to the parent.
    """
    for lock in filter(is_own_file, parent.glob(f"{_prefix(kind)}*{LOCK}")):
        folder = Path(str(lock).removesuffix(LOCK))
        with suppress(Timeout, OSError), FileLock(lock, timeout=0):
            if is_own_folder(folder):
                _remove(folder)
            _forget(lock, folder)


def _forget(lock: Path, folder: Path) -> None:
    """Remove the lock, unless the folder still exists, as after a second Ctrl-C: the next process removes both."""
    if not is_own_folder(folder):
        lock.unlink(missing_ok=True)


def _prefix(kind: str) -> str:
    """Return the names' prefix, with the machine's name: on a shared file system, a lock need not hold between machines."""
    return f"dagrpo-{kind}-{socket.gethostname()}-"


def _remove(folder: Path) -> None:
    remove_noted(folder)
    shutil.rmtree(folder, ignore_errors=True)


def is_own_file(path: Path) -> bool:
    """Return True for a regular file of this user's, not a link."""
    return _is_own(path, stat.S_ISREG)


def is_own_folder(path: Path) -> bool:
    """Return True for a folder of this user's, not a link, that no other user may write to."""
    return _is_own(path, stat.S_ISDIR) and not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    try:
        status = path.lstat()
    except OSError:  # it is gone, or out of reach
        return False
    return status.st_uid == os.getuid() and is_kind(status.st_mode)
