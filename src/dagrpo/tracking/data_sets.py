"""Data sets as inputs of MLflow runs, by content."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from mlflow.entities import Dataset, DatasetInput, InputTag

from dagrpo.tracking.contents import DataSet
from dagrpo.tracking.names import MAX_DATASET_DIGEST


def tests_in(digests: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the test splits among {path: sha256}, as a page names them."""
    for path, digest in sorted(digests.items()):
        if Path(path).stem == "test":
            name = f"{Path(path).parent.name}/test"
            yield {"name": name, "digest": digest, "path": path, "context": "evaluation"}


def named(data: Mapping[str, str]) -> DatasetInput:
    """Return the data set that a page names."""
    return _data_set(data["name"], data["digest"], data["path"], data["context"], {"sha256": data["digest"]})


def described(data: DataSet) -> DatasetInput:
    """Return a data set with the shape of its file."""
    footer = pq.read_metadata(data.path)
    types = {field.name: str(field.type) for field in footer.schema.to_arrow_schema()}
    columns = [{"name": name, "type": kind, "required": True} for name, kind in types.items()]
    profile = {"num_rows": footer.num_rows, "bytes": data.path.stat().st_size, "sha256": data.digest}
    return _data_set(data.name, data.digest, str(data.path), data.context, profile, columns)


def _data_set(
    name: str, digest: str, path: str, context: str, profile: Mapping[str, Any], columns: Sequence[Any] = ()
) -> DatasetInput:
    dataset = Dataset(
        name=name,
        digest=digest[:MAX_DATASET_DIGEST],
        source_type="local",
        source=json.dumps({"uri": path}),
        schema=json.dumps({"mlflow_colspec": columns}) if columns else None,
        profile=json.dumps(profile),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])
