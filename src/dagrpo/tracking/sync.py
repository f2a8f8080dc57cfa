"""Sync of results into MLflow, leaving existing records alone."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from dagrpo.core.errors import UserError
from dagrpo.tracking.attempt import FOLDER, mode
from dagrpo.tracking.store import require_answer
from dagrpo.tracking.store_address import (
    artifact_location,
    database_path,
    hide_password,
    tracking_uri,
    without_password,
)
from dagrpo.tracking.variations import DVC_NAME, recording_root
from dagrpo.utils.console import say
from dagrpo.utils.failures import words_of
from dagrpo.utils.files import digest_of, read_json, write_json
from dagrpo.utils.provenance import TOPS, provenances_of

if TYPE_CHECKING:
    from dagrpo.tracking.execution import Execution

LOCK = Path(".state/tracking.lock")
SYNCED = Path(".state/tracking.synced.json")  # digests of the folders, the store and the notes that MLflow has
STORE, NOTES = "store/", "notes/"  # beside the names of folders
SECONDS_BEFORE_NOTICE = 10.0  # while another process brings results into MLflow


def record_what_is_new(every_s: float = 0) -> str:
    """Bring new results into MLflow unless DAGRPO_TRACKING is later or off; return the reason of a failure.

    Does nothing, and imports no MLflow, if nothing is new, or the last sync is less than `every_s` seconds ago.
    Raises nothing: the results exist, whatever becomes of their record.
    """
    try:
        is_young = SYNCED.exists() and time.time() - SYNCED.stat().st_mtime < every_s
        if mode() != "on" or is_young or _states(tracking_uri(recording_root(Path.cwd()))) == _synced():
            return ""
    except Exception as error:  # noqa: BLE001  as below
        return _trouble(error)
    return try_to_sync()


def try_to_sync() -> str:
    """Sync what has changed since, and return in words fit for a terminal why that failed; empty: it did not. Nothing is raised."""
    try:
        sync(all_folders=False)
    except Exception as error:  # noqa: BLE001  the border between the results and their record
        return _trouble(error)
    return ""


def _trouble(error: Exception) -> str:
    words = hide_password(words_of(error), tracking_uri(recording_root(Path.cwd())))
    rest = "No result is lost: the next run, `dagrpo ui` or `dagrpo tracking rebuild` records what is missing."
    return f"{words} {rest}" if isinstance(error, UserError) else words


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
    from dagrpo.tracking.execution import finished, unfinished

    states = _states(uri)
    executions = _in_order(list(finished(_changed(states, all_folders=all_folders))), list(unfinished()))
    if DVC_NAME in os.environ:  # what the experiment has checked out belongs to the history that it was made in
        executions = [each for each in executions if each.log is not None]
    if not executions:
        return 0
    from dagrpo.tracking.record import record_all  # imports MLflow

    recorded = record_all(uri, executions, artifacts)
    running = {each.record["experiment"] for each in executions if each.status == "RUNNING"}
    left = running | ({NOTES} if running else set())  # one may end without a word
    synced = {name: state for name, state in states.items() if name not in left}
    write_json(SYNCED, {"states": synced, "incomplete": sorted(recorded.incomplete)})
    return recorded.count


def _changed(states: Mapping[str, str], *, all_folders: bool) -> list[str]:
    """Return the folders that have changed since the last sync, or had figures that it could not read; or all."""
    known = _synced()
    if all_folders or known.get(STORE) != states[STORE]:
        return sorted(states.keys() - {STORE, NOTES})
    changed = {name for name in states if states[name] != known.get(name)}
    return sorted((changed | {*read_json(SYNCED)["incomplete"]}) & states.keys() - {STORE, NOTES})


def _in_order(results: Sequence["Execution"], noted: Sequence["Execution"]) -> list["Execution"]:
    """Put each attempt that ended badly before the one that has made its files later, the other notes after all results."""
    ordered: list[Execution] = []
    remaining = list(noted)
    for execution in results:
        before = [each for each in remaining if _is_before(each, execution)]
        remaining = [each for each in remaining if each not in before]
        ordered += [*before, execution]
    return ordered + remaining


def _is_before(note: "Execution", result: "Execution") -> bool:
    """Return True if a note is of an earlier execution of the same stage. Outdated ones come last, to be closed."""
    is_earlier = note.started // 1000 <= result.started // 1000  # an account has no milliseconds
    return is_earlier and not note.is_outdated and note.identity == result.identity


def _states(uri: str) -> dict[str, str]:
    """Return a digest of the results of each experiment and override run, of the store, and of the failures."""
    names = sorted({path.name for top in TOPS for path in Path(top).glob("*") if path.is_dir()})
    files = {name: provenances_of(name) for name in names} | {NOTES: iter(sorted(FOLDER.glob("*.json")))}
    database = database_path(uri)
    place = [without_password(uri), database.stat().st_ino if database and database.exists() else 0]
    return {STORE: digest_of(place)} | {name: digest_of(list(_versions(own))) for name, own in files.items()}


def _versions(files: Iterable[Path]) -> Iterator[tuple[str, int, int]]:
    """Yield path, modification time and size of files; a stage at work may have removed one that was listed."""
    for path in files:
        with suppress(FileNotFoundError):
            status = path.stat()
            yield str(path), status.st_mtime_ns, status.st_size


def _synced() -> dict[str, str]:
    return dict(read_json(SYNCED)["states"]) if SYNCED.exists() else {}
