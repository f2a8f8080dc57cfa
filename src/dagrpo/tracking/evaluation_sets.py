"""Held-out problems as MLflow's evaluation data sets, by task and content.

All experiments evaluated on the same content share one.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from mlflow.entities import EvaluationDataset
from mlflow.tracing.client import TracingClient
from mlflow.tracking import MlflowClient

from dagrpo.core.errors import UserError

SHA256 = "sha256"
RECORDS_PER_BATCH = 500
SHORT = 8  # hex digits of a digest in a name


def set_name(name: str, digest: str) -> str:
    """Return a data set's unique name, by which MLflow finds it: `gsm8k/test@1a2b3c4d`."""
    if "'" in name or '"' in name:
        raise UserError(f"{name} has a quotation mark in its name")
    return f"{name}@{digest[:SHORT]}"


def bring_evaluation_set(
    client: MlflowClient, experiment_id: str, name: str, digest: str, problems: Mapping[str, Any]
) -> None:
    """Bring the problems of a test split, as from problems.problems_of, into MLflow, idempotently."""
    records = problems["records"]
    data = _find(client, set_name(name, digest), digest)
    if data is None:
        tags = {SHA256: digest, "split": name, "problems": f"{len(records):,} of {problems['of']:,}"}
        data = client.create_dataset(set_name(name, digest), experiment_id, tags)
    else:
        _add(client, data, experiment_id)
    if _count(data) < len({json.dumps(record["inputs"], sort_keys=True) for record in records}):
        store = TracingClient(client.tracking_uri).store  # EvaluationDataset.merge_records asks the global address
        for first in range(0, len(records), RECORDS_PER_BATCH):
            store.upsert_dataset_records(data.dataset_id, records[first : first + RECORDS_PER_BATCH])


def share_evaluation_sets(client: MlflowClient, experiment_id: str, data: Iterable[Mapping[str, str]]) -> None:
    """Show an experiment the data sets of others with the same content, after a cache hit on their outputs."""
    for each in data:
        if each["context"] == "evaluation":
            found = _find(client, set_name(each["name"], each["digest"]), each["digest"])
            if found is not None:
                _add(client, found, experiment_id)


def _find(client: MlflowClient, name: str, digest: str) -> EvaluationDataset | None:
    found = client.search_datasets(filter_string=f"name = '{name}'")
    return next((each for each in found if (each.tags or {}).get(SHA256) == digest), None)


def _add(client: MlflowClient, data: EvaluationDataset, experiment_id: str) -> None:
    own = client.search_datasets([experiment_id], f"name = '{data.name}'")
    if data.dataset_id not in {each.dataset_id for each in own}:
        client.add_dataset_to_experiments(data.dataset_id, [experiment_id])


def _count(data: EvaluationDataset) -> int:
    return int(json.loads(data.profile)["num_records"]) if data.profile else 0
