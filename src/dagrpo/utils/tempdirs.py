"""Temporary folders tied to a live process; a folder of kernels.

The lock lies beside each temporary folder; stale folders are removed on the next use.
"""

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dagrpo.core.errors import UserError
from dagrpo.utils.watched_process import remove_noted

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
    """Remove the lock, unless the folder still exists, as after a second Ctrl-C; the next process then removes both."""
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


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of compiled kernels: DAGRPO_CACHE, else dagrpo in XDG_CACHE_HOME or ~/.cache."""
    if named := environment.get("DAGRPO_CACHE"):
        return Path(named).expanduser().absolute()
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dagrpo"


def kernels_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder below it that kernels are compiled into, created if it is missing. Raises as `own_folder` does."""
    return own_folder(own_folder(cache_folder(environment).resolve()) / "kernels")


def torch_caches(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that put kernels of Inductor and Triton below the cache folder, without those already set.

    The folder is created, unless both are set. Inductor's own folder is below the one for temporary files, which is lost, and where
    another user may create it first. Raises UserError if another user may write to the cache folder, and OSError if it cannot be
    created.
    """
    folders = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    missing = {name: folder for name, folder in folders.items() if name not in environment}
    if not missing:
        return {}
    kernels = kernels_folder(environment)
    return {name: str(kernels / folder) for name, folder in missing.items()}


def own_folder(folder: Path) -> Path:
    """Return the folder, which is created for this user alone if it is missing.

    Raises UserError if another user may have put files there, as they would be run.
    """
    with suppress(FileExistsError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    if not is_own_folder(folder):
        raise UserError(
            f"{folder} keeps compilers and kernels that servers run, but it is not a folder that only you may write to: `chmod 700` it "
            "if all in it is yours, else remove it or set DAGRPO_CACHE to a folder of your own."
        )
    return folder
