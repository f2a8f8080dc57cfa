"""Protection of other experiments' outputs from DVC's checkout."""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.pipeline.dvc.private import DVC_FOLDER
from dagrpo.pipeline.record import STATES
from dagrpo.utils.files import read_text, write_text

LINKS = STATES / f"dvc_links_{os.getuid()}"  # names DVC's database: DVC, which knows it, takes a second to import
FORGET = (
    "CREATE TRIGGER IF NOT EXISTS forget AFTER INSERT ON Cache BEGIN DELETE FROM Cache WHERE rowid = NEW.rowid; END"
)


def keep_other_experiments() -> None:
    """Make DVC forget each output as soon as it has put it in place. Takes a second the first time in a folder.

    `dvc checkout` (a part of `dvc pull` and `dvc exp run`) removes all remembered outputs that no stage of today's params.yaml has:
    those of every other experiment, whose stages Snakemake would then run again. DVC has no setting against that. To empty its
    database before each run is not enough: a second `dvc pull` removes what the first has brought.
    """
    if not DVC_FOLDER.is_dir():
        return
    database = _known_database()
    if database is None:  # cleaning DVC's folder removes the trigger, too
        database = _emptied_database()
        write_text(LINKS, str(database))
    try:
        with closing(sqlite3.connect(database, timeout=10)) as connection, connection:
            connection.execute(FORGET)
    except sqlite3.Error as error:
        raise UserError(
            f"{database}, DVC's record of its links, cannot be written ({error}): stop the DVC process that locks it, or "
            f"delete {database.parent}, which DVC creates again."
        ) from None


def _known_database() -> Path | None:
    """Return the path of the database from a previous search; None if it is gone, or the file with the path is damaged."""
    with suppress(UserError, ValueError, OSError):  # a name may have a NUL in it, or be too long
        database = Path(read_text(LINKS, "delete it"))
        return database if database.is_file() else None
    return None


def _emptied_database() -> Path:
    """Empty DVC's database of the outputs that it has put in place, and return its path."""
    from dvc.repo import Repo

    with Repo(".") as repo:
        repo.state.links.clear()
        return Path(repo.state.links.directory, "cache.db")


if __name__ == "__main__":
    keep_other_experiments()
