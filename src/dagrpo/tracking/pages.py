"""What the run of a seed says once everything is known: figures, a text, data sets, curves, and the policies compared.

The stage report makes it, from files alone: a page is complete also where some of its stages ran under another
configuration, or on another machine.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import pyarrow.parquet as pq
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, RunTag
from mlflow.tracking import MlflowClient
from pydantic import BaseModel, ConfigDict, Field

from dagrpo.tracking.names import metric_name, tag_value
from dagrpo.tracking.parents import CURVES, HEADLINE

METRICS_PER_BATCH = 1000  # MLflow's limit
MAX_DATASET_DIGEST = 36
STEP = "step"


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class DataSet(_Shape):
    """A file that policies learn from or are scored on."""

    name: str  # such as gsm8k/test
    digest: str  # sha256
    path: str
    context: str  # training, evaluation


class Score(_Shape):
    """What one policy scores on one data set."""

    task: str  # the group of its figures, such as eval/gsm8k
    data: DataSet
    values: dict[str, float]  # greedy, mean_at_4, ...


class Policy(_Shape):
    """One evaluated checkpoint, named by the sha256 of its manifest."""

    name: str  # base, trained
    digest: str
    folder: str
    step: Annotated[int, Field(ge=0)]
    scores: list[Score]


class Verdict(_Shape):
    """Whether the trained policy is better than the base policy, and why that is said."""

    is_better: bool
    reason: str


class Page(_Shape):
    """All that a run says."""

    text: str  # Markdown
    figures: dict[str, float]
    tags: dict[str, str]
    data: list[DataSet]
    policies: list[Policy]
    verdict: Verdict

    def of_a_variation(self) -> "Page":
        """The same of a try or a DVC experiment, whose folders are removed some day: it is no champion."""
        reason = f"A variation never becomes champion. {self.verdict.reason}"
        return self.model_copy(update={"verdict": Verdict(is_better=False, reason=reason)})


def bring_page(client: MlflowClient, run_id: str, page: Page, curves: list[Metric], time_ms: int) -> None:
    """Figures, tags, text, data sets and curves. Brought twice, it is there once."""
    figures = [Metric(metric_name(name), value, time_ms, 0) for name, value in page.figures.items()]
    log_points(client, run_id, figures)
    tags = [RunTag(name, tag_value(value)) for name, value in (page.tags | {HEADLINE: page.text}).items()]
    client.log_batch(run_id, tags=tags)
    log_data_sets(client, run_id, page.data)
    if curves and client.get_run(run_id).data.tags.get(CURVES, "report") == "report":
        log_points(client, run_id, curves)
        client.set_tag(run_id, CURVES, "report")


def curve_points(metrics: Path, time_ms: int) -> list[Metric]:
    """A table of curves, point by point; a null is none."""
    rows: list[Mapping[str, Any]] = pq.read_table(metrics).to_pylist()
    return [
        Metric(metric_name(name), value, time_ms, row[STEP])
        for row in rows
        for name, value in row.items()
        if name != STEP and isinstance(value, int | float) and math.isfinite(value)
    ]


def log_points(client: MlflowClient, run_id: str, points: list[Metric]) -> None:
    """As many calls as MLflow's limit asks for."""
    for start in range(0, len(points), METRICS_PER_BATCH):
        client.log_batch(run_id, metrics=points[start : start + METRICS_PER_BATCH])


def tests_in(digests: Mapping[str, str]) -> list[DataSet]:
    """The test splits among {path: sha256}."""
    found = [(Path(path), digest) for path, digest in sorted(digests.items()) if Path(path).stem == "test"]
    return [
        DataSet(name=f"{path.parent.name}/test", digest=digest, path=str(path), context="evaluation")
        for path, digest in found
    ]


def log_data_sets(client: MlflowClient, run_id: str, data: Iterable[DataSet]) -> None:
    """As inputs of a run."""
    inputs = [DatasetInput(_dataset(each), [InputTag("mlflow.data.context", each.context)]) for each in data]
    if inputs:
        client.log_inputs(run_id, inputs)


def _dataset(data: DataSet) -> Dataset:
    return Dataset(
        name=data.name,
        digest=data.digest[:MAX_DATASET_DIGEST],
        source_type="local",
        source=json.dumps({"uri": data.path}),
        profile=json.dumps({"sha256": data.digest}),
    )
