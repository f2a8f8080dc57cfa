"""Hugging Face hub access with a short preflight request and readable errors.

The libraries that download from it retry for half a minute per file if the hub does not answer. `require_answer` asks once.
A token is never part of a message, nor is an address that could hold a password.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import ERROR
from typing import Literal
from urllib.parse import urlsplit

import httpx
from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
    XetDownloadError,
)
from huggingface_hub.utils import logging

from dagrpo.core.errors import UserError
from dagrpo.utils.failures import NO_ROOM

ANSWER_SECONDS = 10.0
NO_ANSWER = (httpx.ConnectError, httpx.TimeoutException, httpx.ProxyError, httpx.UnsupportedProtocol)
FAULTS = (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL, EntryNotFoundError, XetDownloadError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A repository at a commit, and the user's remedy if it cannot be fetched."""

    repository: str
    revision: str  # a full commit
    kind: Literal["model", "dataset"]
    correct: str  # what names it: "correct model.repository"
    instead: str  # the remedy without the hub: "set data.mirror to ..."

    def __str__(self) -> str:
        return f"{self.repository} at commit {self.revision[:12]}"


def require_answer(source: Wanted) -> None:
    """Raise UserError if the hub does not answer within seconds, does not know the repository, or refuses it."""
    with readable_hub_errors(source):
        HfApi().repo_info(
            source.repository,
            revision=source.revision,
            repo_type=source.kind,
            timeout=ANSWER_SECONDS,
            files_metadata=False,
        )


@contextmanager
def readable_hub_errors(source: Wanted, *also: type[Exception]) -> Iterator[None]:
    """Turn a download's errors, and `also`, into a UserError with a remedy.

    An error of this machine's own disk stays unchanged. The libraries' own warnings are silenced.
    """
    caught: tuple[type[Exception], ...] = (*FAULTS, *also)
    before = logging.get_verbosity()
    logging.set_verbosity(ERROR)
    try:
        yield
    except caught as error:
        of_the_disk = isinstance(error, OSError) and (error.errno in NO_ROOM or error.filename is not None)
        if isinstance(error, UserError) or of_the_disk:
            raise
        raise UserError(_sentence(_cause(error), source)) from error
    finally:
        logging.set_verbosity(before)


def _cause(error: BaseException) -> BaseException:
    """Return the network error below those that libraries have wrapped around it, or the error itself without one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, HfHubHTTPError | httpx.TransportError | OfflineModeIsEnabled):
            return cause
        cause = cause.__cause__ or cause.__context__
    return error


def _sentence(error: BaseException, source: Wanted) -> str:
    if isinstance(error, HfHubHTTPError):
        return _about_an_answer(error, source)
    if isinstance(error, OfflineModeIsEnabled):
        return f"{source} is to come from the hub, but HF_HUB_OFFLINE is set: unset it, or {source.instead}."
    if isinstance(error, NO_ANSWER):
        return (
            f"{source} is to come from the hub, and {endpoint()} cannot be reached ({_reason(error)}): check the network; "
            f"behind a proxy, set HTTPS_PROXY; where the hub has a mirror, set HF_ENDPOINT; or {source.instead}."
        )
    if isinstance(error, httpx.TransportError):
        return f"{endpoint()} broke off while {source} was read ({_reason(error)}): run again, or {source.instead}."
    if isinstance(error, HFValidationError):
        return f"{source.repository} is no name of a repository: {source.correct}, or {source.instead}."
    return f"{source} cannot be read from the hub ({_reason(error)}): run again, or {source.instead}."


def _about_an_answer(error: HfHubHTTPError, source: Wanted) -> str:
    """Return the meaning of an HTTP status here. The hub also answers 401 for a missing repository."""
    status = error.response.status_code
    answer = f"{endpoint()} answers {status} {error.response.reason_phrase}".rstrip()
    if isinstance(error, RevisionNotFoundError):
        return f"{endpoint()} has no commit {source.revision} of {source.repository}: {source.correct}, or {source.instead}."
    if isinstance(error, EntryNotFoundError):
        return f"{source} lacks a file on {endpoint()}: {source.correct}, or {source.instead}."
    if status in {401, 403}:
        return f"{source} is not handed out ({answer}): {_about_credentials(source)}, or {source.instead}."
    if status == 404:
        return f"{endpoint()} knows no {source.repository}: {source.correct}, or {source.instead}."
    return f"{source} cannot be read ({answer}): try again later, or {source.instead}."


def _about_credentials(source: Wanted) -> str:
    page = f"{endpoint()}/{'datasets/' if source.kind == 'dataset' else ''}{source.repository}"
    if get_token() is None:
        return f"{source.correct}, or set HF_TOKEN to a token that may read it, after accepting its terms on {page}"
    return f"the token in HF_TOKEN, or of `hf auth login`, may not read it: renew the token, accept the terms on {page}"


def endpoint() -> str:
    """Return the hub's address without a user or a password."""
    parts = urlsplit(constants.ENDPOINT)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _reason(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
