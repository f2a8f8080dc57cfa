"""MLflow runs of executions, below the run of their seed."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mlflow.entities import LifecycleStage, Param, RunTag
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from dagrpo.tracking.attempt import FOLDER
from dagrpo.tracking.execution import Execution
from dagrpo.tracking.names import digest_list, file_tag, flatten, tag_value
from dagrpo.tracking.parents import ATTEMPT, NOTE, PARENT, all_runs, batches, describe, find_parent, variation_tags
from dagrpo.utils.process import Process

ABOUT_CURVES = (
    "The parent run of this seed has the curves. This run has the meaning of each metric (`metrics.json`), completions, traces and "
    "the load of the machine."
)
INCOMPLETE = "incomplete"  # the tag that says why a run has no figures


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


class StageRuns:
    """The runs of stages in an experiment: queried once, however many executions are compared."""

    def __init__(self, client: MlflowClient, experiment_id: str) -> None:
        self._closed: dict[str, list[Mapping[str, str]]] = {}  # {key: tags}
        self._open: set[str] = set()  # identities
        for run in all_runs(client, experiment_id, "tags.role = 'stage'"):
            about = {**run.data.tags, "status": run.info.status, "run_id": run.info.run_id}
            if run.info.status == "RUNNING":
                self._open.add(about["identity"])
            else:
                self._closed.setdefault(about["key"], []).append(about)

    def have(self, execution: Execution) -> bool:
        """Return True if a complete closed run has the status and outputs of this execution, or is of its note."""
        alike = self._alike(execution)
        return any(tags["status"] == execution.status and INCOMPLETE not in tags for tags in alike)

    def have_open(self, execution: Execution) -> bool:
        """Return True if a run of the same files was RUNNING at the query."""
        return execution.identity in self._open

    def begun(self, execution: Execution) -> str | None:
        """Return the id of a closed run to continue: it has no figures yet, or another clone of the project has closed it."""
        return next((tags["run_id"] for tags in self._alike(execution)), None)

    def _alike(self, execution: Execution) -> list[Mapping[str, str]]:
        if execution.status == "FINISHED":
            own = {file_tag("output", path): digest for path, digest in execution.outputs.items()}
            own |= {"status": "FINISHED"}
        else:
            own = {"execution": execution.note}
        return [tags for tags in self._closed.get(execution.key, ()) if own.items() <= tags.items()]


def open_run(client: MlflowClient, experiment_id: str, execution: Execution, begun: str | None = None) -> MlflowRun:
    """Return the run that a sync or a follower has begun for this execution, or a new one.

    begun: the id of a closed run of this execution to continue, if there is one.
    """
    own = close_others(client, experiment_id, execution)
    run_id = own or begun or _create(client, experiment_id, execution)
    for params in batches([Param(name, value) for name, value in flatten(execution.record["params"]).items()]):
        client.log_batch(run_id, params=params)
    tag_digests(client, run_id, "input", execution.record["inputs"])
    return client.get_run(run_id)


def close_others(client: MlflowClient, experiment_id: str, execution: Execution) -> str | None:
    """Close as KILLED the runs that earlier executions of the same stage have left; return the id of this one's open run."""
    own = None
    query = f"tags.identity = '{execution.identity}' and attributes.status = 'RUNNING'"
    for run in client.search_runs([experiment_id], query):
        if own is None and _is_own(run.data.tags, execution):
            own = str(run.info.run_id)
        elif _is_abandoned(run.data.tags):
            client.set_terminated(run.info.run_id, "KILLED")
    return own


def _is_own(tags: Mapping[str, str], execution: Execution) -> bool:
    """Return True if an open run is this execution's: of its note, or begun by a sync for the same results."""
    if "execution" in tags:
        return tags["execution"] == execution.note
    return execution.status == "FINISHED" and tags.get("key") == execution.key


def _is_abandoned(tags: Mapping[str, str]) -> bool:
    """Return True if the process of an open run is gone and no note says how it ended. Another clone's may be alive."""
    process = _process_of(tags)
    has_note = "execution" in tags and (FOLDER / f"{tags['execution']}.json").exists()
    return not has_note and (process is None or process.is_gone)


def _process_of(tags: Mapping[str, str]) -> Process | None:
    """Return the process of the stage; None for a run that a sync has begun for results."""
    if "process.pid" not in tags:
        return None
    pid, started = int(tags["process.pid"]), float(tags["process.started"])
    return Process(pid=pid, started=started, host=tags["process.host"], boot=tags.get("process.boot", ""))


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
    tags |= {"identity": execution.identity, "mlflow.source.name": f"src/dagrpo/pipeline/stages/{record['stage']}.py"}
    tags |= {} if execution.status == "FINISHED" else {"execution": execution.note}
    if execution.process is not None:
        tags |= {f"process.{name}": value for name, value in asdict(execution.process).items()}
    tags |= {NOTE: ABOUT_CURVES} if execution.trains else {}
    tags |= {"mlflow.source.type": "LOCAL"} | dict(execution.facts)
    return {name: tag_value(value) for name, value in tags.items()}
