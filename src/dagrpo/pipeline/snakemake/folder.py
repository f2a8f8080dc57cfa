"""Check that this user may write to the project's folder."""

import os
import pwd
from pathlib import Path

from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.pipeline.snakemake.configuration import told_by_snakemake
from dagrpo.utils.provenance import PROVENANCE

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


def require_mirror(params: Params, folder: str) -> None:
    """Raise UserError if data of an experiment is still to be prepared, from a mirror that is missing."""
    mirror, records = params.data.mirror, (Path("data", folder, task, PROVENANCE) for task in params.experiment.tasks)
    if mirror is not None and not Path(mirror).is_dir() and not all(record.exists() for record in records):
        raise UserError(
            f"data.mirror is {mirror}, which is not a folder on this machine: correct it, or set it to null to use the hub."
        )


def require_possible_weights_folder(params: Params) -> None:
    """Raise UserError if the folder for weights on their way to the engine cannot be made."""
    given = params.runtime.engine.weights_folder
    if given is None:
        return
    folder = Path(given).absolute()
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(
            f"runtime.engine.weights_folder is {given}, which cannot be made or written to, as {existing} is no folder that you may write "
            "to: name another folder, or null."
        )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # in a container, a user need not have a name
        return f"user {number}"
