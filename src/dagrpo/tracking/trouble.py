"""Why something could not be brought into MLflow, as a sentence. Imports MLflow: only a delivery does.

It may quote an address: the caller hides a password in it.
"""

import sqlite3
from collections.abc import Iterator

from mlflow.exceptions import MlflowException
from requests.exceptions import RequestException
from sqlalchemy.exc import SQLAlchemyError

from dagrpo.tracking.store import database_path, is_server, is_todays, remedy_for, without_user
from dagrpo.visible import one_line

REFUSALS = (401, 403)
OF_ANOTHER = (
    "set MLFLOW_TRACKING_URI to it again once it answers, for what was recorded for it is delivered nowhere else"
)
LONGEST = 200  # characters of what others say


def trouble_with(error: Exception) -> str:
    """What is wrong with one record."""
    return f"{type(error).__name__}: {_words(error)}"


def is_of_store(error: Exception, uri: str) -> bool:
    """Whether it keeps everything from this server or database, not only what the error is about."""
    chain = list(_chain(error))
    if is_server(uri):
        return _status(error) in REFUSALS or any(isinstance(cause, RequestException) for cause in chain)
    return any(type(cause) in {sqlite3.OperationalError, sqlite3.DatabaseError} for cause in chain)


def trouble_of_store(error: Exception, uri: str) -> str:
    """What is wrong with a server or a database, and what to do."""
    return _of_server(error, uri) if is_server(uri) else _of_database(error, uri)


def _of_server(error: Exception, uri: str) -> str:
    causes = list(_chain(error))
    if _status(error) in REFUSALS:
        fault = f"refuses the credentials ({_status(error)})"
        remedy = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    elif any(isinstance(cause, RequestException) for cause in causes):
        fault, remedy = f"does not answer ({_words(causes[-1])})", "start it, or correct MLFLOW_TRACKING_URI"
    else:
        fault, remedy = f"does not answer as MLflow does ({_words(error)})", "correct MLFLOW_TRACKING_URI"
    return f"the server at {without_user(uri)} {fault}: {remedy if is_todays(uri) else OF_ANOTHER}"


def _of_database(error: Exception, uri: str) -> str:
    said = next((cause for cause in _chain(error) if isinstance(cause, sqlite3.Error | SQLAlchemyError)), error)
    words = _words(getattr(said, "orig", None) or said)
    database = database_path(uri)
    remedy = "see that it answers" if database is None else remedy_for(database, words)
    return f"{database or 'the database'} cannot record runs ({words}): {remedy}, or correct MLFLOW_TRACKING_URI"


def _status(error: Exception) -> int | None:
    return error.get_http_status_code() if isinstance(error, MlflowException) else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _words(error: BaseException) -> str:
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0], LONGEST)
