"""Names of files that others have written down, in an index, a manifest or a header: which of them stay inside a folder.

Not here: whether there is such a file.
"""

from pathlib import Path
from typing import Any, TypeGuard

from dagrpo.visible import visible

LONGEST = 255  # bytes of a name, as file systems have it
LONGEST_PATH = 1024  # characters


def is_plain(name: Any) -> TypeGuard[str]:
    """Whether this is the name of a file of some folder itself: text that hides nothing, without a folder in it."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or visible(name) != name:
        return False
    return "\n" not in name and "\t" not in name and len(name.encode()) <= LONGEST


def is_below(name: Any) -> TypeGuard[str]:
    """Whether this is the path of a file below some folder, with forward slashes and spelled in the one way there is."""
    return isinstance(name, str) and len(name) <= LONGEST_PATH and all(map(is_plain, name.split("/")))


def leads_out(path: Path) -> bool:
    """Whether a file is a link out of its folder. One within a repository of the hub's own cache is not: it keeps files there."""
    folder = path.parent.resolve()
    home = folder.parent.parent if folder.parent.name == "snapshots" else folder
    return not path.resolve().is_relative_to(home)
