"""MLflow runs of executions, below the run of their seed."""

from collections.abc import Mapping
from typing import Any

from mlflow.entities import LifecycleStage, Param, RunTag
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from dagrpo.tracking.contents import WITH_CURVES
from dagrpo.tracking.execution import Execution
from dagrpo.tracking.names import digest_list, file_tag, flatten, tag_value
from dagrpo.tracking.parents import ATTEMPT, NOTE, PARENT, all_runs, batches, describe, find_parent, variation_tags

ABOUT_CURVES = (
    "Its curves are those of the run above it, which stands for the seed. Here: completions, traces, the machine."
)


def find_experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    """Return the id of the MLflow experiment of that name, created or restored from the bin if necessary."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except MlflowException:  # made meanwhile by a project elsewhere that records on the same server
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    if experiment.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(experiment.experiment_id)
    return str(experiment.experiment_id)


class WholeRuns:
    """The closed runs of an experiment, by key: queried once, however many executions are compared."""

    def __init__(self, client: MlflowClient, experiment_id: str) -> None:
        self._tags: dict[str, list[Mapping[str, str]]] = {}
        closed = "tags.role = 'stage' and attributes.status != 'RUNNING'"
        for run in all_runs(client, experiment_id, closed):
            about = {**run.data.tags, "status": run.info.status}
            self._tags.setdefault(run.data.tags["key"], []).append(about)

    def have(self, execution: Execution) -> bool:
        """Return True if one of the runs is this execution's: it has its status and outputs, or is of its note."""
        if execution.status == "FINISHED":
            own = {file_tag("output", path): digest for path, digest in execution.outputs.items()}
            own |= {"status": "FINISHED"}
        else:
            own = {"execution": execution.source.stem}
        return any(own.items() <= tags.items() for tags in self._tags.get(execution.key, ()))


def open_run(client: MlflowClient, experiment_id: str, execution: Execution) -> MlflowRun:
    """Return the run that a sync or a follower has begun for this execution, or a new one.

    A run that an earlier execution has left RUNNING is KILLED: the workflow never makes the same files twice at once.
    """
    own = None
    left = f"tags.identity = '{execution.identity}' and attributes.status = 'RUNNING'"
    for run in client.search_runs([experiment_id], left):
        if run.data.tags.get("key") == execution.key and own is None:
            own = run
        else:
            client.set_terminated(run.info.run_id, "KILLED")
    run_id = own.info.run_id if own else _create(client, experiment_id, execution)
    for params in batches([Param(name, value) for name, value in flatten(execution.record["params"]).items()]):
        client.log_batch(run_id, params=params)
    tag_digests(client, run_id, "input", execution.record["inputs"])
    return client.get_run(run_id)


def tag_digests(client: MlflowClient, run_id: str, kind: str, digests: Mapping[str, str]) -> None:
    """Set the sha256 of each input or output as a tag of a run. kind: input, output."""
    tags = [RunTag(file_tag(kind, path), digest) for path, digest in sorted(digests.items())]
    tags.append(RunTag(f"{kind}s", digest_list(digests)))
    for part in batches(tags):
        client.log_batch(run_id, tags=part)


def _create(client: MlflowClient, experiment_id: str, execution: Execution) -> str:
    parent = find_parent(client, experiment_id, execution, execution.record.get("seed"))
    client.update_run(parent, "RUNNING")
    describe(client, parent, execution)
    before = f"tags.`{PARENT}` = '{parent}' and tags.identity = '{execution.identity}'"
    attempt = 1 + len(client.search_runs([experiment_id], before))
    tags = _tags(execution) | {PARENT: parent, ATTEMPT: str(attempt)}
    run = client.create_run(experiment_id, execution.started, tags, _name(execution, attempt))
    return str(run.info.run_id)


def _name(execution: Execution, attempt: int) -> str:
    """Return a run's name, its stage and place, such as `score gsm8k/trained`, with a number from the second attempt on."""
    name = f"{execution.stage} {execution.place}".strip()
    return f"{name}, attempt {attempt}" if attempt > 1 else name


def _tags(execution: Execution) -> dict[str, str]:
    record = execution.record
    tags: dict[str, Any] = {name: record[name] for name in ("stage", "key", "code")}
    tags |= {"experiment": execution.experiment, "role": "stage", "seed": execution.seed}
    tags |= variation_tags(execution)
    tags |= {"taken_from": record["taken_from"]} if "taken_from" in record else {}
    tags |= {"identity": execution.identity, "mlflow.source.name": f"src/dagrpo/stages/{record['stage']}.py"}
    tags |= {} if execution.status == "FINISHED" else {"execution": execution.source.stem}
    tags |= {NOTE: ABOUT_CURVES} if execution.stage in WITH_CURVES else {}
    tags |= {"mlflow.source.type": "LOCAL"} | dict(execution.facts)
    return {name: tag_value(value) for name, value in tags.items()}
