"""Store of runs: the embedded database, or MLFLOW_TRACKING_URI's.

Checking it needs no MLflow; opening it imports MLflow, which takes seconds, so a stage only ever checks.
"""

import os
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.core.urls import parts_of
from dagrpo.tracking.store_address import (
    database_path,
    hide_password,
    is_server,
    without_password,
    without_user,
)
from dagrpo.utils.failures import NEARLY_FULL, disk_of, free_on

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ANSWER_SECONDS = 10
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


def require_answer(uri: str) -> None:
    """Check as `require_recording` does, and raise UserError if the address is a server's that does not answer in HTTP."""
    require_recording(uri)
    if not is_server(uri):
        return
    try:
        with urllib.request.urlopen(f"{without_user(uri).rstrip('/')}/health", timeout=ANSWER_SECONDS):
            pass
    except urllib.error.HTTPError:
        return  # it answers; whether we may write, its own client will say
    except (OSError, HTTPException) as error:
        words = one_line(str(getattr(error, "reason", error)) or type(error).__name__, LONGEST)
        raise UserError(
            f"The MLflow server at {without_user(uri)} does not answer ({words}): start it, or correct MLFLOW_TRACKING_URI."
        ) from None


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
    return client


def trouble_of_store(error: Exception, uri: str) -> str:
    """Return why a server or a database takes nothing, with a remedy and without a password. Imports MLflow."""
    from mlflow.exceptions import MlflowException

    *_, cause = _chain(error)
    words = one_line((str(cause).strip().splitlines() or [type(cause).__name__])[0], LONGEST)
    database = database_path(uri)
    if isinstance(error, MlflowException) and is_server(uri) and error.get_http_status_code() in REFUSALS:
        words = f"it refuses the credentials ({error.get_http_status_code()})"
        remedy = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
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
