"""Whose a file is, in folders that every user of the machine may write to."""

import os
import stat
from collections.abc import Callable
from pathlib import Path


def is_own_file(path: Path) -> bool:
    """Whether it is a regular file of this user's, and no link."""
    return _is_own(path, stat.S_ISREG)


def is_own_folder(path: Path) -> bool:
    """Whether it is a folder of this user's, no link, and nobody else may write to it."""
    return _is_own(path, stat.S_ISDIR) and not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    try:
        status = path.lstat()
    except OSError:  # it is gone, or out of reach
        return False
    return status.st_uid == os.getuid() and is_kind(status.st_mode)
