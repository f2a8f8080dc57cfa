"""Executions that MLflow remembers, also those whose outputs have been overwritten since."""

from collections.abc import Mapping
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.tracking.store import is_initialised, open_client, require_answer, tracking_uri, trouble_of_store
from dagrpo.utils.provenance import Execution, files_of


def past_executions(root: Path) -> list[Execution]:
    """Return every finished execution on record, newest first. Takes seconds: it imports MLflow.

    UserError when the record cannot be read.
    """
    uri = tracking_uri(root)
    if not is_initialised(uri):
        return []
    require_answer(uri)
    try:
        client = open_client(uri)
    except Exception as error:  # the border to a server or a database, which may answer anything
        raise UserError(f"the runs on record cannot be read: {trouble_of_store(error, uri)}.") from error
    from dagrpo.tracking.runs import all_runs

    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    tags_of_runs = (run.data.tags for run in all_runs(client, experiments, "tags.role = 'stage'"))
    return [_execution(tags) for tags in tags_of_runs if _digests(tags, "output.")]


def _execution(tags: Mapping[str, str]) -> Execution:
    return Execution(
        stage=tags["stage"],
        experiment=tags["experiment"],
        seed=int(tags["seed"]) if tags["seed"].isdecimal() else None,
        key=tags["key"],
        inputs=files_of(_digests(tags, "input.")),
        outputs=files_of(_digests(tags, "output.")),
    )


def _digests(tags: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in tags.items() if name.startswith(prefix)}
