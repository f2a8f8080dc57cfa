"""Repositories sent to the Hugging Face hub."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
from huggingface_hub import CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from dagrpo.cli.publish.repositories import Repository
from dagrpo.core.errors import UserError
from dagrpo.core.redaction import redacted
from dagrpo.utils.hub import endpoint

MESSAGE = "dagrpo publish"


def require_name(name: str) -> None:
    """Raise UserError unless it is ORG/NAME."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"hub:{name} is no name of a repository ({error}): write hub:ORG/NAME.") from None
    if name.count("/") != 1:
        raise UserError(f"hub:{name} names no organisation or user: write hub:ORG/NAME.")


def send(repositories: Sequence[Repository], organisation: str, *, public: bool) -> list[str]:
    """Create the repositories that do not exist, make one commit in each, and return their addresses.

    A repository that exists keeps its visibility and its other files. Raises UserError if the hub refuses, or cannot be reached.
    """
    if get_token() is None:
        raise UserError(f"{endpoint()} needs a token that may write: set HF_TOKEN, or run `hf auth login`.")
    addresses = []
    for repository in repositories:
        name = f"{organisation}/{repository.name}"
        with _readable_errors(name):
            api = HfApi()
            address = api.create_repo(name, repo_type=repository.kind, private=not public, exist_ok=True)
            files = [CommitOperationAdd(path, str(file)) for path, file in repository.files.items()]
            api.create_commit(name, files, commit_message=MESSAGE, repo_type=repository.kind)
            addresses.append(str(address))
    return addresses


@contextmanager
def _readable_errors(name: str) -> Iterator[None]:
    """Turn the errors of an upload into a UserError. Files that the hub has already are not sent again by the next try."""
    try:
        yield
    except (HfHubHTTPError, httpx.TransportError, RuntimeError) as error:
        cause: BaseException = error
        while not isinstance(cause, HfHubHTTPError) and cause.__cause__ is not None:
            cause = cause.__cause__
        raise UserError(f"{name} was not published: {_sentence(cause, name)}.") from error


def _sentence(error: BaseException, name: str) -> str:
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        answer = f"{endpoint()} answers {status} {error.response.reason_phrase}".rstrip()
        remedy = f"take a token that may write to {name}" if status in {401, 403} else "run the same command again"
        return f"{answer}; {remedy}"
    reason = (redacted(str(error)).strip() or type(error).__name__).splitlines()[0]
    return f"{endpoint()} broke off or cannot be reached ({reason}); run the same command again"
