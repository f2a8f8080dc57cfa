"""Address of the store of runs, also as it may be shown."""

import os
from pathlib import Path
from urllib.parse import unquote

from dagrpo.core.redaction import HIDDEN, redacted, secret_parameters, without_secret_parameters
from dagrpo.core.urls import SERVER_SCHEMES, parts_of

SQLITE = "sqlite:///"
DATABASE = "mlflow.db"
ARTIFACTS = "mlartifacts"
CREDENTIALS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


def tracking_uri(root: Path) -> str:
    """Return MLFLOW_TRACKING_URI, or else `sqlite:///<root>/mlflow.db`; a relative file is one below `root`."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or SQLITE + DATABASE
    path = database_path(uri)
    return uri if path is None else f"{SQLITE}{root.resolve() / path}"


def database_path(uri: str) -> Path | None:
    """Return the file behind a sqlite address; None for any other address."""
    return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


def without_password(uri: str) -> str:
    """Return the address as it may be stored and shown; the user's name stays, unless it may be a token.

    An invalid address is hidden entirely.
    """
    parts = parts_of(uri)
    if parts is None:
        return HIDDEN
    user = "" if parts.password is None and is_server(uri) else parts.username or ""
    return _with_user(uri, user)


def without_user(uri: str) -> str:
    """Return the address as a browser or urllib takes it."""
    return _with_user(uri, "")


def hide_password(text: str, uri: str) -> str:
    """Redact a message that may quote the address: its password, and other secrets of the environment."""
    text = text.replace(uri, without_password(uri))
    for secret in sorted(_secrets(uri), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return redacted(text)


def _secrets(uri: str) -> set[str]:
    """Return the server's or database's secrets, as written and decoded: a library may quote either."""
    parts = parts_of(uri)
    in_address: list[str | None] = []
    if parts is not None:
        in_address = [parts.password, parts.username if parts.password is None and is_server(uri) else None]
    named = [*in_address, *(os.environ.get(name) for name in CREDENTIALS)]
    written = {secret for secret in (*named, *secret_parameters(uri)) if secret}
    return written | {unquote(secret) for secret in written}


def _with_user(uri: str, user: str) -> str:
    """Return the address with `user`, without the password, also without one among the parameters."""
    parts = parts_of(uri)
    if parts is None:
        return HIDDEN
    if parts.username is not None:
        host = parts.netloc.rpartition("@")[2]
        uri = parts._replace(netloc=f"{user}@{host}" if user else host).geturl()
    return without_secret_parameters(uri)


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
