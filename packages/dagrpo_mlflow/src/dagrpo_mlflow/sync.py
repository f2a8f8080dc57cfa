"""Sync of results into MLflow, leaving existing records alone."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from dagrpo.core.errors import UserError
from dagrpo.utils.console import say
from dagrpo.utils.failures import words_of
from dagrpo.utils.files import digest_of, read_json, write_json
from dagrpo.utils.provenance import TOPS, provenances_of
from dagrpo_mlflow.attempt import FOLDER, mode
from dagrpo_mlflow.store import (
    artifact_location,
    database_path,
    hide_password,
    require_answer,
    tracking_uri,
    without_user,
)
from dagrpo_mlflow.variations import DVC_NAME, recording_root

if TYPE_CHECKING:
    from dagrpo_mlflow.execution import Execution

LOCK = Path(".state/tracking.lock")
SYNCED = Path(".state/tracking.synced.json")  # digests of the folders, the store and the notes that MLflow has
STORE, NOTES = "store/", "notes/"  # beside the names of folders
SECONDS_BEFORE_NOTICE = 10.0  # while another process brings results into MLflow


def record_what_is_new(every_s: float = 0) -> str:
    """Bring new results into MLflow unless DAGRPO_TRACKING is later or off; return the reason of a failure, and raise nothing.

    Does nothing, and imports no MLflow, if nothing is new, or the last sync is less than `every_s` seconds ago.
    """
    is_young = SYNCED.exists() and time.time() - SYNCED.stat().st_mtime < every_s
    return "" if is_young else try_to_sync(even_if_off=False)


def try_to_sync(*, even_if_off: bool = True) -> str:
    """Sync what has changed since, and return in words fit for a terminal why that failed; empty: it did not. Raise nothing.

    The results exist, whatever becomes of their record.
    """
    uri = tracking_uri(recording_root(Path.cwd()))
    try:
        if (mode() == "on" or even_if_off) and _states(uri) != _synced():
            sync(all_folders=False)
    except Exception as error:  # noqa: BLE001  the border between the results and their record
        words = hide_password(words_of(error), uri)
        rest = "No result is lost: the next run, `dagrpo ui` or `dagrpo tracking rebuild` records what is missing."
        return f"{words} {rest}" if isinstance(error, UserError) else words
    return ""


def sync(*, all_folders: bool = True) -> int:
    """Record the results and failures below the working folder that MLflow does not hold yet.

    Returns how many executions that were. Runs left unfinished by a follower, or by a sync that was killed, are continued. `all_folders`:
    without it, folders that have not changed since the last sync are left out. Raises UserError if MLflow cannot take it now.
    """
    home = recording_root(Path.cwd())
    uri = tracking_uri(home)
    require_answer(uri)
    (home / LOCK).parent.mkdir(exist_ok=True)
    lock = FileLock(home / LOCK)
    try:
        lock.acquire(timeout=SECONDS_BEFORE_NOTICE)
    except Timeout:
        say("Another process is recording runs in MLflow: waiting for it. No result is lost if this is interrupted.")
        lock.acquire()
    try:
        return _record(uri, artifact_location(uri, home), all_folders=all_folders)
    finally:
        lock.release()


def _record(uri: str, artifacts: str | None, *, all_folders: bool) -> int:
    from dagrpo_mlflow.execution import finished, unfinished

    states, known = _states(uri), _synced()
    is_known = not all_folders and known.get(STORE) == states[STORE]
    folders = [name for name in states if name not in (STORE, NOTES)]
    changed = [name for name in folders if not is_known or states[name] != known.get(name)]
    executions = _in_order(list(finished(changed)), list(unfinished()))
    if DVC_NAME in os.environ:  # what the experiment has checked out belongs to the history that it was made in
        executions = [each for each in executions if each.log is not None]
    if not executions:
        return 0
    from dagrpo_mlflow.record import record_all  # imports MLflow

    count, incomplete = record_all(uri, executions, artifacts)
    running = {each.record["experiment"] for each in executions if each.status == "RUNNING"}
    left = running | incomplete | ({NOTES} if running else set())  # one may end without a word
    write_json(SYNCED, {name: state for name, state in states.items() if name not in left})
    return count


def _in_order(results: Sequence["Execution"], noted: Sequence["Execution"]) -> list["Execution"]:
    """Put each attempt that ended badly before the one that has made its files later, the other notes after all results.

    Outdated ones come last, to be closed.
    """
    ordered: list[Execution] = []
    remaining = list(noted)
    for result in results:
        before = [
            note
            for note in remaining
            if not note.is_outdated
            and note.identity == result.identity
            and note.started // 1000 <= result.started // 1000  # an account has no milliseconds
        ]
        remaining = [each for each in remaining if each not in before]
        ordered += [*before, result]
    return ordered + remaining


def _states(uri: str) -> dict[str, str]:
    """Return a digest of the results of each experiment and override run, of the store, and of the failures."""
    names = sorted({path.name for top in TOPS for path in Path(top).glob("*") if path.is_dir()})
    files = {name: provenances_of(name) for name in names} | {NOTES: iter(sorted(FOLDER.glob("*.json")))}
    database = database_path(uri)
    place = [without_user(uri), database.stat().st_ino if database and database.exists() else 0]
    return {STORE: digest_of(place)} | {name: digest_of(list(_versions(own))) for name, own in files.items()}


def _versions(files: Iterable[Path]) -> Iterator[tuple[str, int, int]]:
    """Yield path, modification time and size of files; a stage at work may have removed one that was listed."""
    for path in files:
        with suppress(FileNotFoundError):
            status = path.stat()
            yield str(path), status.st_mtime_ns, status.st_size


def _synced() -> dict[str, str]:
    return dict(read_json(SYNCED)) if SYNCED.exists() else {}
