"""Check that this user may write to the project's folder."""

import os
import pwd
from pathlib import Path

from dagrpo.errors import UserError
from dagrpo.workflow.configuration import told_by_snakemake

WRITTEN = (".", ".state", ".snakemake", "logs", "data", "models", "results")


def require_writable() -> None:
    """Raise Refusal, shown by Snakemake, naming the first folder that this user may not write to."""
    told_by_snakemake(lambda: refuse_read_only(Path.cwd()))


def refuse_read_only(root: Path) -> None:
    """Raise UserError if a folder of the project exists and cannot be written to."""
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
