"""Checks that untrusted file names stay inside a folder.

They come from an index, a manifest or a header. Whether the files exist is not checked.
"""

from pathlib import Path
from typing import Any, TypeGuard

from dagrpo.core.escape import visible

LONGEST = 255  # bytes of a name, as file systems have it
LONGEST_PATH = 1024  # characters


def is_plain(name: Any) -> TypeGuard[str]:
    """Return True for a plain file name: no folder and no control characters."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or visible(name) != name:
        return False
    return "\n" not in name and "\t" not in name and len(name.encode()) <= LONGEST


def is_below(name: Any) -> TypeGuard[str]:
    """Return True for the path of a file below some folder, with forward slashes, in its only canonical spelling."""
    return isinstance(name, str) and len(name) <= LONGEST_PATH and all(map(is_plain, name.split("/")))


def leads_out(path: Path) -> bool:
    """Return True for a link out of its folder, except within a repository of the hub's cache, which keeps files there."""
    folder = path.parent.resolve()
    home = folder.parent.parent if folder.parent.name == "snapshots" else folder
    return not path.resolve().is_relative_to(home)
