"""Write an execution's contents into its MLflow run, idempotently."""

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ENDPOINT_NOT_FOUND, ErrorCode
from mlflow.tracing.client import TracingClient
from mlflow.tracking import MlflowClient

from dagrpo.core.errors import UserError
from dagrpo.core.metrics import SAMPLES_SEEN
from dagrpo.report.attempt import Attempt
from dagrpo.tracking.contents import STEP, Contents, DataSet, Summary, described, named, tests_in
from dagrpo.tracking.curve import Step
from dagrpo.tracking.execution import Execution
from dagrpo.tracking.models import Models, input_policy, link_output_policy
from dagrpo.tracking.names import metric_name
from dagrpo.tracking.parents import ATTEMPT, HEADLINE, describe, find_parent, varied_parameters
from dagrpo.tracking.policies import register, write_policies
from dagrpo.tracking.problems import link_prompt, share_evaluation_sets, write_evaluation_set, write_prompt
from dagrpo.tracking.runs import PARENT, Run, Runs, Series
from dagrpo.tracking.traces import log_traces, traces_of
from dagrpo.tracking.views import experiment_tags
from dagrpo.utils.files import digest_of
from dagrpo.utils.run_info import GROUP

LOGGED_ARTIFACTS = "mlflow.loggedArtifacts"  # a run's tables, for MLflow's load_table and its table view
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The MLflow run of an execution."""

    runs: Runs
    run: Run
    execution: Execution

    @property
    def client(self) -> MlflowClient:
        return self.runs.client

    @property
    def parent(self) -> Run:
        """The run that stands for its seed."""
        return self.runs.by_id(self.run.tags[PARENT])

    @property
    def models(self) -> Models:
        return Models(runs=self.runs, run_id=self.parent.run_id, seed=self.execution.seed)


def write_contents(target: Target, contents: Contents) -> None:
    """Write an execution's contents into its run, and those for its seed into the seed's run."""
    run = target.run
    write_steps(target, contents.steps)
    for artifact in contents.artifacts:
        run.write_file(artifact.name, artifact.content, artifact.folder)
        if target.execution.stage == "report" and not artifact.folder:  # where people look for it
            target.parent.write_file(artifact.name, artifact.content)
    tables = _write_tables(run, contents.tables)
    run.log(tags={**contents.tags, **tables})
    policy = _input_policy(target)
    run.read([*map(described, contents.data_sets), *map(named, tests_in(target.execution.behind))], policy)
    with optional("problems"):
        _write_problems(target, contents.problems)
    with optional("traces"):
        _write_traces(target, contents.traces, next(iter(policy), None))
    _write_output_policy(target)
    for summary in contents.summaries:
        _write_summary(target, summary)


def write_steps(target: Target, steps: Sequence[Step]) -> None:
    """Write the points that are missing: curves of training to the run of the seed, all else to the stage's own.

    Those of an execution that has finished also where an earlier attempt had other values.
    """
    size = _samples_per_step(target.execution)
    points = [
        Metric(metric_name(name), value if math.isfinite(value) else math.nan, step.time, step.step)
        for step in steps
        for name, value in (dict(step.values) | ({SAMPLES_SEEN: step.step * size} if size else {})).items()
    ]
    run = target.parent if target.execution.trains else target.run
    is_first = target.run.tags.get(ATTEMPT, "1") == "1"
    log_points(run, points, are_final=target.execution.status == "FINISHED", is_first=is_first)


def _samples_per_step(execution: Execution) -> int:
    """Return the number of trajectories that a step of GRPO learns from; 0 for other stages."""
    training = execution.record["params"].get("training", {}) if execution.stage == "train" else {}
    return int(training.get("prompts_per_step", 0) * training.get("samples_per_prompt", 0))


def _write_tables(run: Run, tables: Mapping[str, pa.Table]) -> dict[str, str]:
    """Write the files that MlflowClient.log_table would write first (it appends); return the tags that name them."""
    for name, table in tables.items():
        frame = pd.DataFrame(table.to_pydict())
        text = frame.to_json(orient="split", index=False, date_format="iso")
        run.write_file(f"{name}.json", text.encode())
    marks = [{"path": f"{name}.json", "type": "table"} for name in tables]
    return {LOGGED_ARTIFACTS: json.dumps(marks)} if marks else {}


def _write_problems(target: Target, problems: Iterable[tuple[DataSet, Mapping[str, Any]]]) -> None:
    runs = target.runs
    for data, split in problems:
        name, digest, task = data.name, data.digest, data.name.partition("/")[0]
        runs.once("problems", name, digest, ask=partial(write_evaluation_set, runs, name, digest, split))
        if split["prompt"]:
            form, tools = split["prompt"], split["tools"]
            make = partial(write_prompt, runs.client, runs.experiment_id, task, form, tools)
            version = runs.once("prompt", task, digest_of([form, tools]), ask=make)
            for run in (target.run, target.parent):
                link_prompt(run, version)


def _write_traces(target: Target, tables: Iterable[Sequence[Attempt]], model_id: str | None) -> None:
    run, experiment_id = target.run, target.runs.experiment_id
    for number, attempts in enumerate(tables):
        traces = traces_of(
            attempts,
            experiment=experiment_id,
            run_id=run.run_id,
            name=f"{run.run_id}/{number}",
            time_ms=run.started,
            model_id=model_id,
        )
        log_traces(TracingClient(target.client.tracking_uri), traces, experiment_id, is_new=run.is_new)


def _input_policy(target: Target) -> list[str]:
    model = None
    with optional("policies"):
        model = input_policy(target.models, target.execution)
    return [] if model is None else [str(model.model_id)]


def _write_output_policy(target: Target) -> None:
    execution = target.execution
    step = execution.record["params"].get("training", {}).get("steps") if execution.stage == "train" else 0
    with optional("policies"):
        link_output_policy(target.models, target.run, execution, step)


def _write_summary(target: Target, summary: Summary) -> None:
    """Write figures, tags, text, data sets, curves and policies to the run of a seed, created if missing."""
    runs, content = target.runs, summary.content
    run = find_parent(runs, target.execution, summary.seed)
    run.reopen()  # until the sync ends, which writes its description
    describe(run, target.execution)
    time_ms = target.execution.ended or target.execution.started
    figures = [Metric(metric_name(name), value, time_ms, 0) for name, value in content["figures"].items()]
    run.log(tags={**content["tags"], HEADLINE: content["text"]}, points=figures)
    run.read(map(named, content["data"]))
    log_points(run, [] if summary.curves is None else _curve_points(summary.curves, time_ms))
    runs.tag(experiment_tags(map(metric_name, content["figures"]), varied_parameters(runs)))
    with optional("problems"):
        share_evaluation_sets(runs, content["data"])
    if summary.seed is not None:
        with optional("policies"):
            _write_policies(target, run, str(summary.seed), content, time_ms)


def _write_policies(target: Target, run: Run, seed: str, content: Mapping[str, Any], time_ms: int) -> None:
    verdict = content["verdict"]
    if target.execution.variation:  # its folders are removed at some time
        verdict = {"is_better": False, "reason": f"A variation never becomes champion. {verdict['reason']}"}
    models = write_policies(target.runs, run, seed, content["policies"], time_ms)
    register(target.client, target.execution.experiment, run.run_id, seed, models, content["policies"], verdict)


def _curve_points(table: pa.Table, time_ms: int) -> list[Metric]:
    return [
        Metric(metric_name(name), value, time_ms, row[STEP])
        for row in table.to_pylist()
        for name, value in row.items()
        if name != STEP and isinstance(value, int | float) and math.isfinite(value)
    ]


def log_points(run: Run, points: Iterable[Metric], *, are_final: bool = False, is_first: bool = True) -> None:
    """Log the points of steps that a run does not have yet; final ones also where it has another value for a step.

    A stage that resumes after an interruption reports its earlier steps again, and a follower may have logged some. An
    abandoned attempt may have had other values: MLflow keeps those beside the final ones. Times differ in each attempt,
    and are logged once. is_first: no attempt was abandoned before, so that a run with the last values has all of them.
    """
    points = list(points)
    if (is_first or not are_final) and _has_last_values(run, points):
        run.log(points=[point for point in points if point.key not in run.metrics])
    else:
        run.log(points=[point for point in points if not _has(run.history(point.key), point, are_final)])


def _has_last_values(run: Run, points: Iterable[Metric]) -> bool:
    """Return True if each metric that the run has ends with the last step and its value. Its points were logged in order."""
    last = {point.key: point for point in points if point.key in run.metrics}
    return all(run.steps[key] == point.step and _are_same(run.metrics[key], point.value) for key, point in last.items())


def _has(series: Series, point: Metric, is_final: bool) -> bool:
    values = series.get(point.step, [])
    if not is_final or point.key.startswith(GROUP):
        return bool(values)
    return any(_are_same(value, point.value) for value in values)


def _are_same(one: float, other: float) -> bool:
    return math.isclose(one, other) or (math.isnan(one) and math.isnan(other))


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
