"""Executions that MLflow remembers, also those whose outputs have been overwritten since."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagrpo.core.errors import UserError
from dagrpo.tracking.store import is_initialised, open_client, require_answer, trouble_of_store
from dagrpo.tracking.store_address import tracking_uri
from dagrpo.utils.provenance import Execution, files_of

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


def past_executions(root: Path) -> list[Execution]:
    """Return every finished execution on record, newest first. Takes seconds: it imports MLflow.

    UserError when the record cannot be read.
    """
    uri = tracking_uri(root)
    if not is_initialised(uri):
        return []
    require_answer(uri)
    client = _client(uri)
    return [execution for tags in _tags_of_runs(client) if (execution := _execution(tags)) is not None]


def _client(uri: str) -> "MlflowClient":
    try:
        return open_client(uri)
    except Exception as error:  # the border to a server or a database, which may answer anything
        raise UserError(f"the runs on record cannot be read: {trouble_of_store(error, uri)}.") from error


def _tags_of_runs(client: "MlflowClient") -> Iterator[Mapping[str, str]]:
    from dagrpo.tracking.runs import all_runs

    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return (run.data.tags for run in all_runs(client, experiments, "tags.role = 'stage'"))


def _execution(tags: Mapping[str, str]) -> Execution | None:
    outputs = _digests(tags, "output.")
    if not outputs:
        return None
    return Execution(
        stage=tags["stage"],
        experiment=tags["experiment"],
        seed=int(tags["seed"]) if tags["seed"].isdecimal() else None,
        key=tags["key"],
        inputs=files_of(_digests(tags, "input.")),
        outputs=files_of(outputs),
    )


def _digests(tags: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in tags.items() if name.startswith(prefix)}
