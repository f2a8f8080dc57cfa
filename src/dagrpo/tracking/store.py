"""Store of runs: the embedded database, or MLFLOW_TRACKING_URI's.

Checking it needs no MLflow; opening it imports MLflow, which takes seconds, so a stage only ever checks.
"""

import base64
import os
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from filelock import FileLock

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.core.urls import parts_of
from dagrpo.tracking.store_address import (
    ARTIFACTS,
    database_path,
    hide_password,
    is_server,
    without_password,
    without_user,
)
from dagrpo.utils.console import say
from dagrpo.utils.full_disk import NEARLY_FULL, disk_of, free_on

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ANSWER_SECONDS = 10
ACCESS_SECONDS = 4  # before work; `dvc repro` asks before each stage
OTHER_CREDENTIALS = ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4")  # in whose place MLflow sends its own
ARTIFACT_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
    ("trace_tags", "value"),
)
DATABASE_REMEDIES = {  # what SQLite says, and what helps
    "locked": "end the program that holds it",
    "readonly": "correct its permissions",
    "unable to open": "correct its permissions",
}
REFUSALS = (401, 403)
LONGEST = 200  # characters of what others say
_REMEDY = "or set DAGRPO_TRACKING=off to run without a record"


def require_recording(uri: str) -> None:
    """Raise UserError with a remedy, before any work, if recording can never succeed at this address.

    A server or a database need not answer yet: its records wait, as when it goes away during the work.
    """
    if database_path(uri) is not None:
        return
    parts = parts_of(uri)
    if parts is None or (is_server(uri) and not parts.hostname):
        raise UserError(
            "MLFLOW_TRACKING_URI is not an address (its host or port cannot be read): write it as http://<server>:<port>, "
            f"with a port below 65536 and with %2F for / and the like in a password, or as sqlite:///<file>, {_REMEDY}."
        )
    if parts.scheme in {"", "file"}:
        raise UserError(
            f"MLFLOW_TRACKING_URI={without_password(uri)} names a folder, and MLflow records in a database or on a server: "
            f"set it to sqlite:///<file> or http://<server>, unset it, {_REMEDY}."
        )


def require_usable(uri: str) -> None:
    """Check as `require_recording` does, also that a database answers. For readers of records."""
    require_recording(uri)
    database = database_path(uri)
    if database is not None:
        _require_database(database)


def require_answer(uri: str) -> None:
    """Raise UserError if the address is a server's that does not answer, or not in HTTP."""
    if not is_server(uri):
        return
    try:
        with urllib.request.urlopen(f"{without_user(uri).rstrip('/')}/health", timeout=ANSWER_SECONDS):
            pass
    except urllib.error.HTTPError:
        return  # it answers; whether we may write, its own client will say
    except HTTPException as error:
        words = one_line(f"{type(error).__name__}: {error}".strip(), LONGEST)
        raise UserError(
            f"The server at {without_user(uri)} is not an MLflow server ({words}): correct MLFLOW_TRACKING_URI."
        ) from None
    except OSError as error:
        raise UserError(
            f"The MLflow server at {without_user(uri)} does not answer ({getattr(error, 'reason', error)}): "
            "start it, or correct MLFLOW_TRACKING_URI."
        ) from None


def require_access(uri: str) -> None:
    """Raise UserError, before any work, if a server refuses the credentials, and say so if it cannot be asked.

    One that is away may come back: its records wait. MLflow, whose import takes seconds, is asked only where its own client may know other
    credentials than a name with a password.
    """
    if not is_server(uri):
        return
    try:
        status = _status_of_search(uri)
        why = "" if status in (200, *REFUSALS) else f"it answers {status}"
    except (OSError, HTTPException) as error:
        status, why = 0, one_line(str(getattr(error, "reason", error)) or type(error).__name__, LONGEST)
    if why:
        say(
            f"Whether the MLflow server at {without_user(uri)} takes the credentials could not be asked ({why}). The work begins; no "
            "result is lost if it refuses."
        )
    if status in REFUSALS and (_has_a_password(uri) or _refuses_the_client(uri)):
        words, remedy = _refused(status)
        raise UserError(f"{without_user(uri)} cannot record runs: {words}: {remedy}, {_REMEDY}.")


def _refuses_the_client(uri: str) -> bool:
    """Return True if MLflow's own client is refused, too."""
    try:
        open_client(uri)
    except Exception as error:  # noqa: BLE001  the border to a server, which may answer anything
        return getattr(error, "get_http_status_code", lambda: 0)() in REFUSALS
    return False


def _credentials(uri: str) -> tuple[str, str]:
    """Return the name and the password that MLflow sends; "" for each that is not given."""
    parts = parts_of(uri)
    user, password = (unquote(text) if text else "" for text in (parts.username, parts.password)) if parts else ("", "")
    return os.environ.get("MLFLOW_TRACKING_USERNAME") or user, os.environ.get("MLFLOW_TRACKING_PASSWORD") or password


def _has_a_password(uri: str) -> bool:
    """Return True if name and password are the only credentials that MLflow sends."""
    return all(_credentials(uri)) and not any(os.environ.get(name) for name in OTHER_CREDENTIALS)


def _status_of_search(uri: str) -> int:
    """Return the status of a server's answer to a question for experiments. Raises OSError or HTTPException without an answer."""
    address = f"{without_user(uri).rstrip('/')}/api/2.0/mlflow/experiments/search?max_results=1"
    user, password = _credentials(uri)
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    basic = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" if user else ""
    request = urllib.request.Request(address)
    if given := basic or (f"Bearer {token}" if token else ""):
        request.add_unredirected_header("Authorization", given)
    try:
        with urllib.request.urlopen(request, timeout=ACCESS_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _refused(status: int) -> tuple[str, str]:
    """Return why a server records nothing after this status, and a remedy."""
    remedy = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    return f"it refuses the credentials ({status})", remedy


def open_client(uri: str) -> "MlflowClient":
    """Connect, creating the embedded database at first use. Simultaneous creation breaks it: hence the lock."""
    # Instead of 7, and of two minutes for each, which take long: the next sync tries again.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines and a request for each run
    from mlflow.tracking import MlflowClient

    with _alone(uri):
        _use_write_ahead_log(uri)
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)  # makes the tables
    follow_moved_artifacts(uri)
    return client


def follow_moved_artifacts(uri: str) -> None:
    """Let an embedded database that was moved or copied find the artifacts beside it: MLflow keeps absolute paths.

    Changes only artifacts in a folder of that name, beside the database as it was.
    """
    database = database_path(uri)
    if database is None or not database.is_file():
        return
    here = str(database.parent / ARTIFACTS)
    with _alone(uri), closing(sqlite3.connect(database, timeout=ANSWER_SECONDS)) as connection, connection:
        present = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "experiments" not in present:
            return
        places = connection.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall()
        for (place,) in places:
            if place and place != here and Path(place).name == ARTIFACTS:
                _replace_prefix(connection, present, place, here)


def _replace_prefix(connection: sqlite3.Connection, present: set[str], old: str, new: str) -> None:
    for table, column in ARTIFACT_COLUMNS:
        if table in present:
            moved = f"{column} = ? OR substr({column}, 1, ?) = ?"
            connection.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE {moved}",
                (new, len(old) + 1, old, len(old) + 1, f"{old}/"),
            )


def trouble_of_store(error: Exception, uri: str) -> str:
    """Return why a server or a database takes nothing, with a remedy and without a password. Imports MLflow."""
    from mlflow.exceptions import MlflowException

    *_, cause = _chain(error)
    words = one_line((str(cause).strip().splitlines() or [type(cause).__name__])[0], LONGEST)
    database = database_path(uri)
    if isinstance(error, MlflowException) and is_server(uri) and error.get_http_status_code() in REFUSALS:
        words, remedy = _refused(error.get_http_status_code())
    elif database is not None:
        remedy = f"{remedy_for(database, words)}, or correct MLFLOW_TRACKING_URI"
    else:
        remedy = "see that it answers, or correct MLFLOW_TRACKING_URI"
    name = database or (without_user(uri) if is_server(uri) else "the database")
    return hide_password(f"{name} cannot record runs: {words}: {remedy}", uri)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_initialised(uri: str) -> bool:
    """Return False for an embedded database that was never opened. Waits for a process that is opening it the first time."""
    database = database_path(uri)
    if database is not None and not database.exists() and not _lock(database).exists():
        return False  # and no question leaves a file behind
    with _alone(uri):
        return database is None or (database.is_file() and database.stat().st_size > 0)


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    database = database_path(uri)
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(_lock(database)):
        yield


def _lock(database: Path) -> Path:
    return database.with_name(f"{database.name}.lock")


def _use_write_ahead_log(uri: str) -> None:
    """Let readers and a writer work without waiting for each other: five times as many writes a second. Persists in the file."""
    database = database_path(uri)
    if database is not None:
        with closing(sqlite3.connect(database, timeout=ANSWER_SECONDS)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")


def remedy_for(database: Path, words: str) -> str:
    """Return a remedy for SQLite's error message about a database. A full disk leads to many different messages."""
    disk = disk_of(database)
    if "full" in words or free_on(disk) < NEARLY_FULL:
        return f"make room on {disk}, where {free_on(disk):,} bytes are free"
    return next((remedy for sign, remedy in DATABASE_REMEDIES.items() if sign in words), "move it away")


def _require_database(database: Path) -> None:
    folder = next(parent for parent in database.parents if parent.exists())
    if not database.exists():
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UserError(
                f"{folder} is not a folder to write {database.name} in: correct its permissions, {_REMEDY}."
            )
        return
    try:
        with closing(sqlite3.connect(database, timeout=ANSWER_SECONDS)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
    except sqlite3.Error as error:
        raise UserError(
            f"{database} cannot record runs ({error}): {remedy_for(database, str(error))}, name another with "
            f"MLFLOW_TRACKING_URI, {_REMEDY}."
        ) from None
