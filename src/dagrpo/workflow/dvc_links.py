"""DVC is kept from removing one experiment's outputs when it puts another's in place.

DVC remembers every output that it has put in place, and `dvc checkout` (a part of `dvc pull` and `dvc exp run`) removes
those that no stage of today's params.yaml has: all other experiments. It has no setting against that, so a trigger in the
database where it remembers them makes it forget each one at once.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from dagrpo.execution.record import STATES
from dagrpo.files import write_text

DONE = STATES / "dvc_links"  # names the database that has the trigger
FORGET = (
    "CREATE TRIGGER IF NOT EXISTS forget AFTER INSERT ON Cache BEGIN DELETE FROM Cache WHERE rowid = NEW.rowid; END"
)


def keep_other_experiments() -> None:
    """See above. Takes a second the first time in a folder; no time afterwards."""
    if not Path(".dvc").is_dir() or (DONE.exists() and Path(DONE.read_text(encoding="utf-8")).exists()):
        return
    from dvc.repo import Repo

    with Repo(".") as repo:
        links = repo.state.links
        links.clear()
        database = Path(links.directory, "cache.db")
    with closing(sqlite3.connect(database, timeout=10)) as connection, connection:
        connection.execute(FORGET)
    write_text(DONE, str(database))


if __name__ == "__main__":
    keep_other_experiments()
