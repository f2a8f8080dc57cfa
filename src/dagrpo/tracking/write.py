"""Write an execution's contents into its MLflow run, idempotently."""

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyarrow as pa
from mlflow.entities import Metric, RunTag
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ENDPOINT_NOT_FOUND, ErrorCode
from mlflow.tracing.client import TracingClient
from mlflow.tracking import MlflowClient

from dagrpo.core.errors import UserError
from dagrpo.report.attempt import Attempt
from dagrpo.tracking.contents import STEP, Contents, DataSet, Summary
from dagrpo.tracking.curve import Step
from dagrpo.tracking.data_sets import described, log_data_sets, named, tests_in
from dagrpo.tracking.execution import Execution
from dagrpo.tracking.models import Models, link_input_policy, link_output_policy
from dagrpo.tracking.names import metric_name, tag_value
from dagrpo.tracking.parents import HEADLINE, PARENT, describe, find_parent
from dagrpo.tracking.points import log_all, log_points
from dagrpo.tracking.policies import register, write_policies
from dagrpo.tracking.problems import link_prompt, share_evaluation_sets, write_evaluation_set, write_prompt
from dagrpo.tracking.traces import log_traces, traces_of
from dagrpo.tracking.views import experiment_tags

LOGGED_ARTIFACTS = "mlflow.loggedArtifacts"  # a run's tables, for MLflow's load_table and its table view
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The MLflow run of an execution."""

    client: MlflowClient
    experiment_id: str
    run: MlflowRun  # as of its opening
    execution: Execution

    @property
    def run_id(self) -> str:
        return str(self.run.info.run_id)

    @property
    def parent(self) -> str:
        """The id of the run that stands for its seed."""
        return str(self.run.data.tags[PARENT])

    @property
    def models(self) -> Models:
        return Models(
            client=self.client, experiment_id=self.experiment_id, run_id=self.parent, seed=self.execution.seed
        )


def write_contents(target: Target, contents: Contents) -> None:
    """Write an execution's contents into its run, and those for its seed into the seed's run."""
    client, run_id = target.client, target.run_id
    write_steps(target, contents.steps)
    for name, value in contents.tags.items():
        client.set_tag(run_id, name, tag_value(value))
    for artifact in contents.artifacts:
        _write_file(client, run_id, artifact.content, artifact.name, artifact.folder)
        if target.execution.stage == "report" and not artifact.folder:  # where people look for it
            _write_file(client, target.parent, artifact.content, artifact.name)
    _write_tables(target, contents.tables)
    log_data_sets(client, run_id, map(described, contents.data_sets))
    log_data_sets(client, run_id, map(named, tests_in(target.execution.behind)))
    model_id = _write_input_policy(target)
    with optional("problems"):
        _write_problems(target, contents.problems)
    with optional("traces"):
        _write_traces(target, contents.traces, model_id)
    _write_output_policy(target)
    for summary in contents.summaries:
        _write_summary(target, summary)


def write_steps(target: Target, steps: Sequence[Step]) -> None:
    """Write the points that are missing: curves of training to the run of the seed, all else to the stage's own.

    Those of an execution that has finished also where an earlier attempt had other values.
    """
    points = [
        Metric(metric_name(name), value if math.isfinite(value) else math.nan, step.time, step.step)
        for step in steps
        for name, value in step.values.items()
    ]
    run_id = target.parent if target.execution.trains else target.run_id
    log_points(target.client, run_id, points, are_final=target.execution.status == "FINISHED")


def _write_file(client: MlflowClient, run_id: str, content: bytes, name: str, folder: str = "") -> None:
    with TemporaryDirectory(prefix="dagrpo-") as temporary:
        path = Path(temporary, name)
        path.write_bytes(content)
        client.log_artifact(run_id, str(path), folder or None)


def _write_tables(target: Target, tables: Mapping[str, pa.Table]) -> None:
    """Write the files that MlflowClient.log_table would write first (it appends), and their marks on the run."""
    for name, table in tables.items():
        frame = pd.DataFrame(table.to_pydict())
        text = frame.to_json(orient="split", index=False, date_format="iso")
        target.client.log_text(target.run_id, text, f"{name}.json")
    if tables:
        marks = [{"path": f"{name}.json", "type": "table"} for name in tables]
        target.client.set_tag(target.run_id, LOGGED_ARTIFACTS, json.dumps(marks))


def _write_problems(target: Target, problems: Iterable[tuple[DataSet, Mapping[str, Any]]]) -> None:
    """Write the problems of an evaluation, and the prompt form of its task."""
    for data, split in problems:
        write_evaluation_set(target.client, target.experiment_id, data.name, data.digest, split)
        if split["prompt"]:
            task = data.name.partition("/")[0]
            version = write_prompt(target.client, target.experiment_id, task, split["prompt"], split["tools"])
            for run_id in (target.run_id, target.parent):
                link_prompt(target.client, run_id, version)


def _write_traces(target: Target, tables: Iterable[Sequence[Attempt]], model_id: str | None) -> None:
    for number, attempts in enumerate(tables):
        traces = traces_of(
            attempts,
            experiment=target.experiment_id,
            run_id=target.run_id,
            name=f"{target.run_id}/{number}",
            time_ms=target.run.info.start_time,
            model_id=model_id,
        )
        log_traces(TracingClient(target.client.tracking_uri), traces, target.experiment_id)


def _write_input_policy(target: Target) -> str | None:
    """Make the policy that the stage has read an input of its run; return the policy's id."""
    execution, model = target.execution, None
    with optional("policies"):
        model = link_input_policy(target.models, target.run_id, execution)
    return None if model is None else str(model.model_id)


def _write_output_policy(target: Target) -> None:
    execution = target.execution
    step = execution.record["params"].get("training", {}).get("steps") if execution.stage == "train" else 0
    with optional("policies"):
        link_output_policy(target.models, target.run_id, execution, step)


def _write_summary(target: Target, summary: Summary) -> None:
    """Write figures, tags, text, data sets, curves and policies to the run of a seed, created if missing."""
    client, experiment_id, content = target.client, target.experiment_id, summary.content
    run_id = find_parent(client, experiment_id, target.execution, summary.seed)
    client.update_run(run_id, "RUNNING")  # until the sync ends, which writes its description
    describe(client, run_id, target.execution)
    time_ms = target.execution.ended or target.execution.started
    figures = [Metric(metric_name(name), value, time_ms, 0) for name, value in content["figures"].items()]
    log_all(client, run_id, figures)
    tags = {**content["tags"], HEADLINE: content["text"]}
    client.log_batch(run_id, tags=[RunTag(name, tag_value(value)) for name, value in tags.items()])
    log_data_sets(client, run_id, map(named, content["data"]))
    log_points(client, run_id, [] if summary.curves is None else _curve_points(summary.curves, time_ms))
    for name, value in experiment_tags(map(metric_name, content["figures"])).items():
        client.set_experiment_tag(experiment_id, name, value)
    with optional("problems"):
        share_evaluation_sets(client, experiment_id, content["data"])
    if summary.seed is not None:
        with optional("policies"):
            _write_policies(target, run_id, str(summary.seed), content, time_ms)


def _write_policies(target: Target, run_id: str, seed: str, content: Mapping[str, Any], time_ms: int) -> None:
    verdict = content["verdict"]
    if target.execution.variation:  # its folders are removed at some time
        verdict = {"is_better": False, "reason": f"A variation never becomes champion. {verdict['reason']}"}
    models = write_policies(target.client, target.experiment_id, run_id, seed, content["policies"], time_ms)
    register(target.client, target.execution.experiment, run_id, seed, models, content["policies"], verdict)


def _curve_points(table: pa.Table, time_ms: int) -> list[Metric]:
    return [
        Metric(metric_name(name), value, time_ms, row[STEP])
        for row in table.to_pylist()
        for name, value in row.items()
        if name != STEP and isinstance(value, int | float) and math.isfinite(value)
    ]


@contextmanager
def optional(content: str) -> Iterator[None]:
    """Continue without content for which the server is too old, or which it cannot take for a reason that the user can fix."""
    try:
        yield
    except (NotImplementedError, UserError) as error:
        logger.warning("the %s of a run are not recorded: %s", content, error)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(ENDPOINT_NOT_FOUND):
            raise
        logger.warning("the %s of a run are not recorded: %s", content, error)
