"""The runs above and beside a stage's run: its experiment, the parent run of its seed, and dead runs before it.

Found by tags and never by remembered ids, so that any process may take over. Callers hold the delivery's lock.
"""

import posixpath
from collections.abc import Mapping
from typing import Any

from mlflow.entities import LifecycleStage
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from dagrpo.files import canonical_json
from dagrpo.tracking.environment import Process
from dagrpo.tracking.names import tag_value
from dagrpo.tracking.variations import experiment_name

PARENT = "mlflow.parentRunId"
VARIATION = "variation"
SHARED = "shared"  # the seed of stages that all seeds share


def seed_tag(record: Mapping[str, Any]) -> str:
    """`0`, `1`, ..., or `shared`."""
    return SHARED if record["seed"] is None else str(record["seed"])


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


def find_parent(
    client: MlflowClient, experiment_id: str, record: Mapping[str, Any], variation: str, start_time: int
) -> str:
    """The id of the parent run of an experiment, a variation of it and a seed, made if there is none.

    `start_time` is in milliseconds.
    """
    seed = seed_tag(record)
    for run in client.search_runs([experiment_id], f"tags.role = 'parent' and tags.seed = '{seed}'"):
        if run.data.tags.get(VARIATION, "") == variation:
            return str(run.info.run_id)
    tags = {"role": "parent", "experiment": experiment_name(record), "seed": seed} | variation_tags(record, variation)
    name = SHARED if seed == SHARED else f"seed {seed}"
    name = f"{name}, {variation}" if variation else name
    return str(client.create_run(experiment_id, start_time, tags, name).info.run_id)


def variation_tags(record: Mapping[str, Any], variation: str) -> dict[str, str]:
    """What tells the run of a variation from the experiment's own; nothing for those."""
    overrides = {
        f"override.{key}": tag_value(canonical_json(value)) for key, value in record.get("overrides", {}).items()
    }
    return ({VARIATION: variation} if variation else {}) | overrides


def settle_parent(client: MlflowClient, run_id: str) -> None:
    """The parent of a run that has just ended: running while any child runs, else ended as its last child did."""
    run = client.get_run(run_id)
    experiments, parent = [run.info.experiment_id], run.data.tags[PARENT]
    children = f"tags.`{PARENT}` = '{parent}'"
    if not client.search_runs(experiments, f"{children} and attributes.status = 'RUNNING'", max_results=1):
        (last,) = client.search_runs(experiments, children, order_by=["attributes.end_time DESC"], max_results=1)
        client.set_terminated(parent, last.info.status, last.info.end_time)


def close_dead_runs(client: MlflowClient, experiment_id: str, identity: str) -> None:
    """Close as KILLED what an earlier execution left RUNNING, when its process is known to be gone.

    For runs whose journal is gone too (a deleted .state folder); those with a journal are closed from it.
    """
    left = f"tags.identity = '{identity}' and attributes.status = 'RUNNING'"
    for run in client.search_runs([experiment_id], left):
        if _process_of(run).is_gone:
            client.set_terminated(run.info.run_id, "KILLED")


def run_name(record: Mapping[str, Any]) -> str:
    """The stage and what tells its executions apart, such as `score gsm8k/trained`."""
    if not record["outputs"]:
        return str(record["stage"])
    place = posixpath.commonpath([posixpath.dirname(path) for path in record["outputs"]])
    experiment = record["experiment"]
    run_folder = f"results/{experiment}/runs/seed_{record['seed']}"
    folders = (f"{run_folder}/eval/", run_folder, *(f"{top}/{experiment}" for top in ("results", "data", "models")))
    prefix = next((folder for folder in folders if place.startswith(folder)), "")
    place = place.removeprefix(prefix)
    return f"{record['stage']} {place.strip('/')}".strip()


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
