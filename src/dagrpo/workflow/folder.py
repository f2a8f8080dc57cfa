"""The project's folder as a place to work in: refused at once where this user may not write."""

import os
import pwd
from pathlib import Path

from dagrpo.errors import UserError
from dagrpo.workflow.configuration import told_by_snakemake

WRITTEN = (".", ".state", ".snakemake", "logs", "data", "models", "results")


def require_writable() -> None:
    """Refuse, in a sentence of Snakemake's, folders that this user may not write to; name the first one."""
    told_by_snakemake(lambda: refuse_read_only(Path.cwd()))


def refuse_read_only(root: Path) -> None:
    """UserError when a folder of the project exists and cannot be written to."""
    for folder in (root / name for name in WRITTEN):
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(
                f"{folder} cannot be written to by you ({_user(os.geteuid())}); it belongs to {_user(folder.stat().st_uid)}: "
                "work in a copy of your own (`git clone`), or have its owner or its permissions changed."
            )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # in a container, a user need not have a name
        return f"user {number}"
