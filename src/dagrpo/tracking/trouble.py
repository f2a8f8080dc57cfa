"""Why something could not be brought into MLflow, as a sentence. Imports MLflow: only a delivery does."""

from collections.abc import Iterator

from mlflow.exceptions import MlflowException
from requests.exceptions import RequestException

from dagrpo.tracking.store import is_server, without_user

REFUSALS = (401, 403)


def trouble_with(error: Exception, uri: str) -> str:
    """What is wrong, and for a server what to set. It may quote the address: the caller hides a password in it."""
    return trouble_with_server(error, uri) or f"{type(error).__name__}: {_first_line(error)}"


def trouble_with_server(error: Exception, uri: str) -> str:
    """What keeps everything from this server, not only what the error is about; empty where nothing does."""
    if not is_server(uri) or not isinstance(error, MlflowException):
        return ""
    server, status = f"the server at {without_user(uri)}", error.get_http_status_code()
    if status in REFUSALS:
        return (
            f"{server} refuses the credentials ({status}): set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN"
        )
    causes = list(_chain(error))
    if any(isinstance(cause, RequestException) for cause in causes):
        return f"{server} does not answer ({_first_line(causes[-1])}): start it, or correct MLFLOW_TRACKING_URI"
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
