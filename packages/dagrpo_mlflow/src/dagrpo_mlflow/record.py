"""Recording of executions in MLflow, whose import takes seconds.

Every write can be repeated.
"""

import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mlflow.entities import DatasetInput, Metric
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ENDPOINT_NOT_FOUND, ErrorCode
from mlflow.tracing.client import TracingClient
from mlflow.tracking import MlflowClient

from dagrpo.core.errors import UserError
from dagrpo.core.metrics import SAMPLES_SEEN
from dagrpo.report.attempt import Attempt
from dagrpo.utils.console import counted, say
from dagrpo.utils.failures import words_of
from dagrpo.utils.files import remove
from dagrpo.utils.run_info import GROUP
from dagrpo_mlflow.curve import Step
from dagrpo_mlflow.execution import Execution
from dagrpo_mlflow.models import input_policy, link_output_policy, write_policies
from dagrpo_mlflow.names import digest_tags, metric_name
from dagrpo_mlflow.parents import (
    ATTEMPT,
    ERROR,
    HEADLINE,
    INCOMPLETE,
    describe,
    find_parent,
    find_run,
    open_run,
    settle_parents,
    varied_parameters,
)
from dagrpo_mlflow.read import Contents, contents_of
from dagrpo_mlflow.runs import PARENT, Run, Runs, open_experiment
from dagrpo_mlflow.store import open_client, trouble_of_store
from dagrpo_mlflow.summaries import Summary
from dagrpo_mlflow.traces import log_traces, traces_of
from dagrpo_mlflow.views import experiment_tags

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


def record_all(uri: str, executions: Sequence[Execution], artifacts: str | None) -> tuple[int, set[str]]:
    """Record the executions that MLflow lacks, in their order. Raises UserError if it takes nothing now.

    Returns how many these were, and the experiments and override runs with an execution whose figures cannot be read yet.
    artifacts: the folder for files of new experiments; None: the server decides.
    """
    try:
        client = open_client(uri)
        names = dict.fromkeys(execution.experiment for execution in executions)
        runs = {name: open_experiment(client, name, artifacts) for name in names}
        count, incomplete = 0, set[str]()
        for each in counted(executions, "recording in MLflow"):
            is_missing, is_whole = _record(runs[each.experiment], each)
            count += is_missing
            incomplete |= set() if is_whole else {each.record["experiment"]}
        for name, own in runs.items():
            settle_parents(own, [each for each in executions if each.status == "RUNNING" and each.experiment == name])
    except UserError:
        raise
    except Exception as error:  # the border: a server or a database may answer anything
        logger.info("MLflow takes nothing", exc_info=error)
        raise UserError(f"{trouble_of_store(error, uri)}.") from error
    return count, incomplete


def _record(runs: Runs, execution: Execution) -> tuple[bool, bool]:
    """Record one execution; return whether it was missing, and whether it has its figures. An active one is left to its follower."""
    if execution.status == "RUNNING":
        return False, False
    run = find_run(runs, execution)
    is_there = run is not None and run.status == execution.status and not run.tags.get(INCOMPLETE)
    is_whole, is_missing = True, not execution.is_outdated and not is_there
    if is_missing:
        contents = _contents(execution)
        is_whole = not contents.missing
        if not is_whole and run is not None and run.status == "FINISHED":
            return False, False  # it is there, and its figures cannot be read yet
        write_run(runs, execution, contents, run)
    elif run is not None and run.status == "RUNNING":  # killed after its last output was written
        run.close(execution.status, execution.ended)
    if execution.status != "FINISHED":
        remove(execution.source)
    return is_missing, is_whole


def _contents(execution: Execution) -> Contents:
    """Return the contents of an execution's run; if its files cannot be read, none, and print a line."""
    try:
        return contents_of(execution)
    except Exception as error:  # noqa: BLE001  the border to files that may be gone, damaged or of another version
        say(f"{execution.source}: recorded without figures: {words_of(error)}")
        return Contents(missing=words_of(error))


def write_run(runs: Runs, execution: Execution, contents: Contents, begun: Run | None = None) -> None:
    """Write the whole run of an execution, its status last: a run that was begun and not finished is found and continued."""
    run = open_run(runs, execution, begun)
    _write_contents(Target(runs=runs, run=run, execution=execution), contents)
    tags = digest_tags("output", execution.outputs)
    tags |= {INCOMPLETE: contents.missing} if contents.missing or INCOMPLETE in run.tags else {}
    tags |= {ERROR: execution.error} if execution.error else {}
    run.log(tags=tags)
    runs.flush()  # what its parent got too: a closed run is not written again
    run.close(execution.status, execution.ended)


def _write_contents(target: Target, contents: Contents) -> None:
    """Write an execution's contents into its run, and those for its seed into the seed's run."""
    run = target.run
    write_steps(target, contents.steps)
    for path, text in contents.files.items():
        target.client.log_text(run.run_id, text, path)
        if path == "report.html":  # where people look for it
            target.client.log_text(target.parent.run_id, text, path)
    for name, rows in contents.tables.items():
        table = {"columns": [*rows[0]] if rows else [], "data": [[*row.values()] for row in rows]}
        target.client.log_text(run.run_id, json.dumps(table), f"{name}.json")
    marks = [{"path": f"{name}.json", "type": "table"} for name in contents.tables]
    run.log(tags={**contents.tags, **({LOGGED_ARTIFACTS: json.dumps(marks)} if marks else {})})
    policy = None
    with optional("policies"):
        policy = input_policy(target.runs, target.parent, target.execution)
    run.read(contents.data_sets, [policy] if policy else [])
    with optional("traces"):
        _write_traces(target, contents.traces, policy)
    with optional("policies"):
        link_output_policy(target.runs, target.parent, run, target.execution)
    for summary in contents.summaries:
        _write_summary(target, summary, contents.data_sets)


def _write_traces(target: Target, tables: Sequence[Sequence[Attempt]], model_id: str | None) -> None:
    run, experiment = target.run, target.runs.experiment_id
    traces = [
        trace
        for number, attempts in enumerate(tables)
        for trace in traces_of(
            attempts,
            experiment=experiment,
            run_id=run.run_id,
            name=f"{run.run_id}/{number}",
            time_ms=run.started,
            model_id=model_id,
        )
    ]
    log_traces(TracingClient(target.client.tracking_uri), traces, experiment)


def _write_summary(target: Target, summary: Summary, data: Sequence[DatasetInput]) -> None:
    """Write figures, tags, text, data sets and policies to the run of a seed, created if missing."""
    runs = target.runs
    run = find_parent(runs, target.execution, summary.seed)
    run.reopen()  # until the sync ends, which writes its description
    describe(run, target.execution)
    time_ms = target.execution.ended or target.execution.started
    figures = [Metric(metric_name(name), value, time_ms, 0) for name, value in summary.figures.items()]
    run.log(tags={**summary.tags, HEADLINE: summary.text}, points=figures)
    run.read(data)
    runs.tag(experiment_tags(map(metric_name, summary.figures), varied_parameters(runs)))
    with optional("policies"):
        write_policies(runs, run, summary.policies, time_ms)


def write_steps(target: Target, steps: Iterable[Step]) -> None:
    """Write the points that are missing: curves of training to the run of the seed, all else to the stage's own.

    Of an execution that has finished after one that was abandoned, also where that one had other values.
    """
    execution = target.execution
    training = execution.record["params"].get("training", {}) if execution.stage == "train" else {}
    size = training.get("prompts_per_step", 0) * training.get("samples_per_prompt", 0)
    points = [
        Metric(metric_name(name), value if math.isfinite(value) else math.nan, step.time, step.step)
        for step in steps
        for name, value in (dict(step.values) | ({SAMPLES_SEEN: step.step * size} if size else {})).items()
    ]
    run = target.parent if execution.trains else target.run
    if execution.status == "FINISHED" and target.run.tags.get(ATTEMPT, "1") != "1":
        run.flush()
        run.log(points=list(_unlike(run, points)))
    else:
        log_points(run, points)


def log_points(run: Run, points: Iterable[Metric]) -> None:
    """Log the points of later steps than a run has of their metric: a follower logs them in order, and a resumed stage repeats some."""
    run.log(points=[point for point in points if point.step > run.steps.get(point.key, -1)])


def _unlike(run: Run, points: Iterable[Metric]) -> Iterator[Metric]:
    """Yield the points whose values the run does not have. Times differ in each attempt, and are logged once."""
    had: dict[str, dict[int, list[float]]] = {}
    for point in points:
        if point.key not in had:
            had[point.key] = {}
            known = run.client.get_metric_history(run.run_id, point.key) if point.key in run.steps else []
            for each in known:
                had[point.key].setdefault(each.step, []).append(each.value)
        values = had[point.key].get(point.step, [])
        is_known_time = point.key.startswith(GROUP) and values
        if not is_known_time and not any(_are_same(value, point.value) for value in values):
            yield point


def _are_same(one: float, other: float) -> bool:
    return math.isclose(one, other) or (math.isnan(one) and math.isnan(other))


@contextmanager
def optional(content: str) -> Iterator[None]:
    """Continue without content for which the server is too old."""
    try:
        yield
    except (NotImplementedError, MlflowException) as error:
        if isinstance(error, MlflowException) and error.error_code != ErrorCode.Name(ENDPOINT_NOT_FOUND):
            raise
        logger.warning("the %s of a run are not recorded: %s", content, error)
