"""Check of file owners in folders that every user may write to."""

import os
import stat
from collections.abc import Callable
from pathlib import Path


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
