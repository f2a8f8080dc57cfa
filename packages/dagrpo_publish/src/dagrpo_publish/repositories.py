"""Repositories of a publication, and their way to the hub."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import pyarrow as pa
from huggingface_hub import CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from dagrpo.checkpoints.manifest import verify
from dagrpo.core.errors import UserError
from dagrpo.core.redaction import redacted
from dagrpo.utils.files import write_text
from dagrpo.utils.hub import endpoint
from dagrpo.utils.manifest import MANIFEST, fault_of, listed_files
from dagrpo.utils.tables import read_parquet, write_parquet
from dagrpo_publish.cards import Publication, model_card, rollouts_card
from dagrpo_publish.crate.reading import INSIDE
from dagrpo_publish.crate.writing import require_no_secret, write_crate

MESSAGE = "dagrpo publish"
CARD = "README.md"
NOT_PUBLISHED = ("origin.json",)  # names paths of this machine
TEXTS = (".json", ".jinja", ".md", ".txt", ".yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """One repository of the hub, before it is sent."""

    kind: Literal["model", "dataset"]
    name: str  # after the organisation, and of its folder
    files: Mapping[str, Path]  # path in the repository -> file of this machine


def repositories(publication: Publication, scratch: Path) -> list[Repository]:
    """Write what is not there yet to `scratch`, and return what is to be published, the data set first.

    Raises UserError if a file was changed since its stage made it, or holds a secret.
    """
    model = Repository(kind="model", name=publication.name, files=dict(_model_files(publication, scratch / "model")))
    if not publication.with_rollouts:
        return [model]
    files = dict(_rollout_files(publication, scratch / "rollouts"))
    return [Repository(kind="dataset", name=publication.rollouts_name, files=files), model]


def _model_files(publication: Publication, scratch: Path) -> Iterator[tuple[str, Path]]:
    manifest = verify(publication.checkpoint)
    names = [name for name in manifest.files if name not in NOT_PUBLISHED and not name.endswith(".py")]
    if CARD in names:
        raise UserError(f"{publication.checkpoint} has a file {CARD}, the place of the card: export the policy again.")
    require_no_secret(publication.checkpoint, [name for name in names if name.endswith(TEXTS)])
    write_crate(publication.finished, scratch / INSIDE)
    write_text(scratch / CARD, model_card(publication))
    require_no_secret(scratch, [CARD])
    yield from ((name, publication.checkpoint / name) for name in names)
    yield from _all_of(scratch)


def _rollout_files(publication: Publication, scratch: Path) -> Iterator[tuple[str, Path]]:
    write_rollouts(publication, scratch / "rollouts")
    for task in publication.tasks:
        write_evaluation(publication, task, scratch / "evaluation")
    write_text(scratch / CARD, rollouts_card(publication))
    require_no_secret(scratch, [CARD])
    yield from _all_of(scratch)


def _all_of(folder: Path) -> Iterator[tuple[str, Path]]:
    yield from ((path.relative_to(folder).as_posix(), path) for path in sorted(folder.rglob("*")) if path.is_file())


# Texts of the data set, and what quotes them: left out where the data are other people's.
OF_THE_DATA = ("prompt", "prompt_ids", "question", "ground_truth", "messages", "calls", "samples", "teacher_logprobs")


def write_rollouts(publication: Publication, folder: Path) -> None:
    """Write the rollouts of each training step. Raises UserError if one is damaged or has a secret in its texts."""
    manifest = publication.run / "rollouts" / MANIFEST
    for name, entry in sorted(listed_files(manifest).items()):
        if not name.startswith("step_"):
            continue
        source = manifest.with_name(name)
        if (fault := fault_of(source, entry)) is not None:
            raise UserError(f"{source} {fault}, but {manifest} lists it: restore it first.")
        write_parquet(
            folder / name,
            _published(publication, publication.finished.params.experiment.train_tasks, read_parquet(source), source),
        )


def write_evaluation(publication: Publication, task: str, folder: Path) -> None:
    """Write the scored completions of every evaluated policy on a task. Raises UserError like `write_rollouts`."""
    for policy in publication.evaluated:
        source = publication.run / "eval" / task / policy / "scores.parquet"
        write_parquet(
            folder / policy / f"{task}.parquet", _published(publication, [task], read_parquet(source), source)
        )


def _published(publication: Publication, tasks: Sequence[str], table: pa.Table, source: Path) -> pa.Table:
    if not publication.are_generated(tasks):
        table = table.drop_columns([name for name in OF_THE_DATA if name in table.column_names])
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_map(column.type):
            table = table.set_column(table.column_names.index(name), name, _as_list(column))
        elif any(redacted(text) != text for text in _texts(column)):
            raise UserError(
                f"{source} has a password, a key or a token in its column {name}, and nothing is published: unset the variable if it is no "
                "secret; a secret that the policy or a tool wrote is to be revoked."
            )
    return table


def _texts(column: pa.ChunkedArray) -> set[str]:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return {text for text in column.to_pylist() if text}
    return {str(value) for value in column.to_pylist()} if pa.types.is_nested(column.type) else set()


def _as_list(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a map as a list of pairs: the library `datasets` knows no maps."""
    pairs = [[{"name": name, "value": value} for name, value in row] for row in column.to_pylist()]
    kind = pa.list_(pa.struct([("name", column.type.key_type), ("value", column.type.item_type)]))
    return pa.chunked_array([pa.array(pairs, kind)])


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
