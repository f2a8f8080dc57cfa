"""Contents of an execution's MLflow run, ready to be written."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.entities import Dataset, DatasetInput, InputTag

from dagrpo.report.attempt import Attempt
from dagrpo.tracking.curve import Step
from dagrpo.tracking.names import MAX_DATASET_DIGEST

EVALUATION = "evaluation"  # the context of a data set that policies are scored on
STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file to look at beside the run."""

    name: str
    content: bytes
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A file that the stage reads or writes, named by its sha256."""

    name: str  # such as gsm8k/test
    digest: str
    path: Path
    context: str  # training, evaluation, ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The contents for the run of a seed, or of all seeds (None), from tracking.summaries."""

    seed: int | None
    content: Mapping[str, Any]
    curves: pa.Table | None


@dataclass(slots=True, kw_only=True)
class Contents:
    """The contents of an execution's run beside its parameters and digests."""

    steps: list[Step] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    artifacts: list[Artifact] = field(default_factory=list)
    tables: dict[str, pa.Table] = field(default_factory=dict)  # the first rows, to read in the UI
    data_sets: list[DataSet] = field(default_factory=list)
    problems: list[tuple[DataSet, dict[str, Any]]] = field(default_factory=list)  # as problems.problems_of gives them
    traces: list[list[Attempt]] = field(default_factory=list)  # of each table of attempts
    summaries: list[Summary] = field(default_factory=list)
    missing: str = ""  # why none of these is there


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
