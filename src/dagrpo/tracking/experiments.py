"""What lies around a stage's run: its experiment, and dead runs before it.

Found by tags and never by remembered ids, so that any process may take over. Callers hold the delivery's lock.
"""

import posixpath
from collections.abc import Mapping
from typing import Any

from mlflow.entities import LifecycleStage
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from dagrpo.tracking.environment import Process


def find_experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    """The id of the MLflow experiment of that name, made or brought back from the bin if need be."""
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


def find_execution(client: MlflowClient, experiment_id: str, execution: str) -> str | None:
    """The id of the run of one execution."""
    runs = client.search_runs([experiment_id], f"tags.execution = '{execution}'", max_results=1)
    return str(runs[0].info.run_id) if runs else None


def close_dead_runs(client: MlflowClient, experiment_id: str, identity: str) -> None:
    """Close as KILLED what an earlier execution left RUNNING, when its process is known to be gone.

    For runs whose journal is gone too (a deleted .state folder); those with a journal are closed from it.
    """
    left = f"tags.identity = '{identity}' and attributes.status = 'RUNNING'"
    for run in client.search_runs([experiment_id], left):
        if _process_of(run).is_gone:
            client.set_terminated(run.info.run_id, "KILLED")


def run_name(record: Mapping[str, Any], attempt: int = 1) -> str:
    """The stage and what tells its executions apart, such as `score gsm8k/trained`; from the second on, which one it is."""
    name = f"{record['stage']} {_place(record)}".strip()
    return f"{name}, attempt {attempt}" if attempt > 1 else name


def _place(record: Mapping[str, Any]) -> str:
    """The task, policy or model; nothing for a stage that runs once per experiment or seed."""
    if not record["outputs"]:
        return ""
    place = posixpath.commonpath([posixpath.dirname(path) for path in record["outputs"]])
    experiment = record["experiment"]
    evaluations = f"results/{experiment}/runs/seed_{record['seed']}/eval"
    for folder in (evaluations, f"data/{experiment}", f"models/{experiment}"):
        if place.startswith(f"{folder}/"):
            inside = place.removeprefix(f"{folder}/")
            return "" if inside == record["stage"] else inside
    return ""


def process_tags(process: Process) -> dict[str, str]:
    """The process as tags of its run."""
    return {
        "process.pid": str(process.pid),
        "process.started": repr(process.started),
        "process.host": process.host,
        "process.boot": process.boot,
    }


def _process_of(run: MlflowRun) -> Process:
    tags = run.data.tags
    return Process(
        pid=int(tags["process.pid"]),
        started=float(tags["process.started"]),
        host=tags["process.host"],
        boot=tags.get("process.boot", ""),
    )
