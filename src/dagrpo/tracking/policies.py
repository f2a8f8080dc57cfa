"""Evaluated checkpoints as MLflow's logged and registered models.

Nothing is uploaded: digest and path. The registered model has the experiment's name. Its alias `champion` is the trained policy that
was last shown to be better than its base policy: an interval of the difference that excludes 0. A control never gets it.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow.entities import LoggedModel, Metric
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, RESOURCE_DOES_NOT_EXIST, ErrorCode
from mlflow.tracking import MlflowClient
from mlflow.tracking._tracking_service.utils import _use_tracking_uri
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

from dagrpo.tracking.checkpoints import DIGEST
from dagrpo.tracking.models import Models
from dagrpo.tracking.names import MAX_DATASET_DIGEST, metric_name, tag_value
from dagrpo.tracking.runs import Run, Runs

CHAMPION = "champion"
TRAINED = "trained"
VERDICT = "verdict"
Policy = Mapping[str, Any]  # an evaluated checkpoint, as tracking.summaries makes it
logger = logging.getLogger(__name__)


def write_policies(runs: Runs, run: Run, seed: str, policies: Sequence[Policy], time_ms: int) -> dict[str, LoggedModel]:
    """Return the models of one seed's policies by their names, each with its scores; created if missing."""
    own = Models(runs=runs, run_id=run.run_id, seed=seed)
    models: dict[str, LoggedModel] = {}
    points: list[Metric] = []
    for policy in policies:
        digest, step = policy["digest"], policy["step"]
        model = own.find(digest, DIGEST) or own.make(policy["name"], policy["folder"], {DIGEST: digest}, step)
        run.make(model.model_id, step)
        points += _points(policy, model.model_id, run.run_id, time_ms)
        models[policy["name"]] = model
    run.log(points=points)
    return models


def _points(policy: Policy, model_id: str, run_id: str, time_ms: int) -> list[Metric]:
    """Return scores linked to their policy and data; in the run they are a curve from the base policy to the trained one."""
    return [
        Metric(
            metric_name(f"{score['task']}/{name}"),
            value,
            time_ms,
            policy["step"],
            model_id=model_id,
            dataset_name=score["data"]["name"],
            dataset_digest=score["data"]["digest"][:MAX_DATASET_DIGEST],
            run_id=run_id,
        )
        for score in policy["scores"]
        for name, value in score["values"].items()
    ]


def register(
    client: MlflowClient,
    experiment: str,
    run_id: str,
    seed: str,
    models: Mapping[str, LoggedModel],
    policies: Sequence[Policy],
    verdict: Mapping[str, Any],
) -> None:
    """Make the trained policy a version of the experiment's model; give it the alias if the verdict allows."""
    trained = next((policy for policy in policies if policy["name"] == TRAINED), None)
    if trained is None:
        return
    model = models[TRAINED]
    version = _version(client, experiment, run_id, seed, trained, model, verdict["reason"])
    if verdict["is_better"]:
        _crown(client, experiment, version)


def _make_registered_model(client: MlflowClient, name: str) -> None:
    about = (
        "Trained policies of this experiment, by digest and path. `champion`: the last one whose interval of the difference to "
        "its base policy excludes 0; never one of a control."
    )
    try:
        client.create_registered_model(name, description=about)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
            raise


def _version(
    client: MlflowClient, experiment: str, run_id: str, seed: str, policy: Policy, model: LoggedModel, verdict: str
) -> str:
    """Return the number of the policy's version, with the verdict as its description; created if missing."""
    for version in client.search_model_versions(f"name = '{experiment}'"):
        if version.tags.get(DIGEST) == policy["digest"]:
            if version.description != verdict:
                client.set_model_version_tag(experiment, version.version, VERDICT, tag_value(verdict))
                client.update_model_version(experiment, version.version, verdict)
            return str(version.version)
    _make_registered_model(client, experiment)
    with _use_tracking_uri(client.tracking_uri):  # where MLflow looks for the model, whatever address the client has
        version = client.create_model_version(
            experiment,
            source=f"models:/{model.model_id}",
            run_id=run_id,
            tags={DIGEST: policy["digest"], "folder": policy["folder"], "seed": seed, VERDICT: tag_value(verdict)},
            description=verdict,
            model_id=model.model_id,
        )
    # What the page of the model shows as registered.
    client.set_logged_model_tags(
        model.model_id, {MLFLOW_MODEL_VERSIONS: json.dumps([{"name": experiment, "version": version.version}])}
    )
    return str(version.version)


def _crown(client: MlflowClient, experiment: str, version: str) -> None:
    """Move the alias forward, never back: a page that is written again is not the newest."""
    try:
        holder = int(client.get_model_version_by_alias(experiment, CHAMPION).version)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(RESOURCE_DOES_NOT_EXIST) and "not found" not in str(error).lower():
            raise
        holder = 0
    if int(version) > holder:
        client.set_registered_model_alias(experiment, CHAMPION, version)
