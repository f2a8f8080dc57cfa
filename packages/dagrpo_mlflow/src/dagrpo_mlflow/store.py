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
from urllib.parse import unquote

from filelock import FileLock

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.core.redaction import HIDDEN, redacted, secret_parameters, without_secret_parameters
from dagrpo.core.urls import SERVER_SCHEMES, parts_of
from dagrpo.utils.failures import NEARLY_FULL, disk_of, free_on

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

SQLITE = "sqlite:///"
DATABASE = "mlflow.db"
ARTIFACTS = "mlartifacts"
CREDENTIALS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
ANSWER_SECONDS = 10
LONGEST = 200  # characters of what others say
_REMEDY = "or set DAGRPO_TRACKING=off to run without a record"


def tracking_uri(root: Path) -> str:
    """Return MLFLOW_TRACKING_URI, or else `sqlite:///<root>/mlflow.db`; a relative file is one below `root`."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or SQLITE + DATABASE
    path = database_path(uri)
    return uri if path is None else f"{SQLITE}{root.resolve() / path}"


def database_path(uri: str) -> Path | None:
    """Return the file behind a sqlite address; None for any other address."""
    return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


def is_server(uri: str) -> bool:
    """Return True for a server's address; a server keeps database and artifacts itself."""
    parts = parts_of(uri)
    return parts is not None and parts.scheme in SERVER_SCHEMES


def artifact_location(uri: str, root: Path) -> str | None:
    """Return mlartifacts/ beside an embedded database, or in `root` for another database; None: the server decides."""
    if is_server(uri):
        return None
    database = database_path(uri)
    return str((database.parent if database else root.resolve()) / ARTIFACTS)


def without_user(uri: str) -> str:
    """Return the address as it may be stored and shown, without user and password, also one among the parameters.

    An invalid address is hidden entirely.
    """
    parts = parts_of(uri)
    if parts is None:
        return HIDDEN
    if parts.username is not None:
        uri = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return without_secret_parameters(uri)


def hide_password(text: str, uri: str) -> str:
    """Redact a message that may quote the address: its password as written or decoded, and other secrets of the environment."""
    parts = parts_of(uri)
    named = [os.environ.get(name) for name in CREDENTIALS]
    if parts is not None:
        named += [parts.password, parts.username if parts.password is None and is_server(uri) else None]
    written = [secret for secret in (*named, *secret_parameters(uri)) if secret]
    return redacted(text.replace(uri, without_user(uri)), [*written, *map(unquote, written)])


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
            f"MLFLOW_TRACKING_URI={without_user(uri)} names a folder, and MLflow records in a database or on a server: "
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

    database = database_path(uri)
    with _alone(database):
        if database is not None:  # a log lets readers and a writer work without waiting; it stays on in the file
            with closing(sqlite3.connect(database, timeout=ANSWER_SECONDS)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)  # makes the tables
    return client


def trouble_of_store(error: BaseException, uri: str) -> str:
    """Return why a server or a database takes nothing, with a remedy and without a password."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    words = one_line((str(error).strip().splitlines() or [type(error).__name__])[0], LONGEST)
    database = database_path(uri)
    if database is None:
        name = without_user(uri) if is_server(uri) else "the database"
        remedy = "see that it answers and takes MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    elif "full" in words or free_on(disk_of(database)) < NEARLY_FULL:  # which leads to many different messages
        name, remedy = str(database), f"make room on {disk_of(database)}"
    else:
        name, remedy = str(database), "correct its permissions, or move it away"
    return hide_password(f"{name} cannot record runs: {words}: {remedy}, or correct MLFLOW_TRACKING_URI", uri)


def is_initialised(uri: str) -> bool:
    """Return False for an embedded database that was never opened. Waits for a process that is opening it the first time."""
    database = database_path(uri)
    if database is not None and not database.exists() and not _lock(database).exists():
        return False  # and no question leaves a file behind
    with _alone(database):
        return database is None or (database.is_file() and database.stat().st_size > 0)


@contextmanager
def _alone(database: Path | None) -> Iterator[None]:
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(_lock(database)):
        yield


def _lock(database: Path) -> Path:
    return database.with_name(f"{database.name}.lock")
