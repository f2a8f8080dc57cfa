"""Runs of an MLflow experiment, fetched once.

A server with passwords takes some tenths of a second for each request: params, tags and points wait until `flush` or `close`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import DatasetInput, LifecycleStage, LoggedModelInput, LoggedModelOutput, Metric, Param, RunTag
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from dagrpo.core.errors import UserError
from dagrpo.pipeline.curve import now_ms
from dagrpo_mlflow.names import tag_value
from dagrpo_mlflow.store import ARTIFACTS, database_path
from dagrpo_mlflow.views import KIND, KIND_TAG

PARENT = "mlflow.parentRunId"


class Run:
    """A run of MLflow, and what it has as far as this process knows."""

    def __init__(self, client: MlflowClient, run: MlflowRun) -> None:
        self.client = client
        self.run_id, self.name, self.status = str(run.info.run_id), str(run.info.run_name), run.info.status
        self.started, self.ended = run.info.start_time, run.info.end_time or None  # milliseconds since 1970
        self.params, self.tags = dict(run.data.params), dict(run.data.tags)
        self.steps = {each.key: each.step for each in run.data._metric_objs}  # the latest of each metric
        self._made = {each.model_id for each in (run.outputs.model_outputs if run.outputs else ())}
        self._new_params: dict[str, str] = {}  # to be sent
        self._new_tags: dict[str, str] = {}
        self._new_points: list[Metric] = []

    def log(
        self,
        *,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, object] | None = None,
        points: Iterable[Metric] = (),
    ) -> None:
        """Add points, and the params and tags that the run lacks."""
        texts = {key: tag_value(value) for key, value in (tags or {}).items()}
        self._new_params |= dict((params or {}).items() - self.params.items())
        self._new_tags |= dict(texts.items() - self.tags.items())
        self.params |= params or {}
        self.tags |= texts
        for point in points:
            self._new_points.append(point)
            self.steps[point.key] = max(point.step, self.steps.get(point.key, 0))

    def flush(self) -> None:
        """Send what `log` has added."""
        if not (self._new_params or self._new_tags or self._new_points):
            return
        params = [Param(*each) for each in self._new_params.items()]
        tags = [RunTag(*each) for each in self._new_tags.items()]
        self.client.log_batch(self.run_id, self._new_points, params, tags)
        self._new_params, self._new_tags, self._new_points = {}, {}, []

    def reopen(self) -> None:
        """Set the status to RUNNING."""
        if self.status != "RUNNING":
            self.client.update_run(self.run_id, "RUNNING")
            self.status = "RUNNING"

    def close(self, status: str, ended: int | None = None) -> None:
        """Send what waits, then set the status and the time of the end; without one MLflow takes the present."""
        self.flush()
        self.client.set_terminated(self.run_id, status, ended)
        self.status, self.ended = status, ended or now_ms()

    def read(self, data: Iterable[DatasetInput] = (), models: Iterable[str] = ()) -> None:
        """Make data sets, and models by their ids, inputs of the run. MLflow keeps each once."""
        data_sets, links = list(data), [LoggedModelInput(model) for model in models]
        if data_sets or links:
            self.client.log_inputs(self.run_id, data_sets, links)

    def make(self, model_id: str, step: int) -> None:
        """Make a model an output of the run. MLflow would refuse a repeated link."""
        if model_id not in self._made:
            self.client.log_outputs(self.run_id, [LoggedModelOutput(model_id, step)])
            self._made.add(model_id)


class Runs:
    """The runs of an MLflow experiment, newest first, with those that this process adds."""

    def __init__(self, client: MlflowClient, experiment_id: str, tags: Mapping[str, str]) -> None:
        self.client = client
        self.experiment_id = experiment_id
        self._tags = dict(tags)  # of the experiment
        self._runs = [Run(client, run) for run in all_runs(client, [experiment_id])]
        self._answers: dict[str, Any] = {}

    def by_id(self, run_id: str) -> Run:
        """Return the run with an id. Raises UserError if it was deleted."""
        for run in self._runs:
            if run.run_id == run_id:
                return run
        raise UserError(
            f"the run {run_id}, which has stages below it, was deleted: restore it in MLflow, or delete these too."
        )

    def where(self, **tags: str) -> list[Run]:
        """Return the runs with these tags."""
        return [run for run in self._runs if tags.items() <= run.tags.items()]

    def create(self, name: str, started: int, tags: Mapping[str, object]) -> Run:
        """Create a run. started: milliseconds since 1970."""
        texts = {key: tag_value(value) for key, value in tags.items()}
        created = Run(self.client, self.client.create_run(self.experiment_id, started, texts, name))
        self._runs = sorted([created, *self._runs], key=lambda each: -each.started)
        return created

    def flush(self) -> None:
        """Send what waits for any run."""
        for run in self._runs:
            run.flush()

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags of the experiment."""
        for name, value in tags.items():
            if self._tags.get(name) != value:
                self.client.set_experiment_tag(self.experiment_id, name, value)
                self._tags[name] = value

    def once(self, question: str, ask: Callable[[], Any]) -> Any:
        """Return the answer to a question about the experiment that is asked once; again after a None."""
        if self._answers.get(question) is None:
            self._answers[question] = ask()
        return self._answers[question]


def open_experiment(client: MlflowClient, name: str, artifacts: str | None) -> Runs:
    """Return the runs of the MLflow experiment of that name, created or restored from the bin if necessary.

    artifacts: the folder for the files of a new experiment; None: the server decides. MLflow keeps absolute paths: after a move of the
    project a new experiment gets the name, and the one of the old place a longer one.
    """
    experiment = client.get_experiment_by_name(name)
    is_embedded = artifacts is not None and database_path(client.tracking_uri) is not None
    if experiment is not None and is_embedded:
        place = experiment.artifact_location
        if place != artifacts and Path(place).name == ARTIFACTS:
            client.rename_experiment(experiment.experiment_id, f"{name}, {experiment.experiment_id}, of {place}")
            experiment = None
    if experiment is None:
        try:
            created = client.create_experiment(name, artifact_location=artifacts, tags={KIND_TAG: KIND})
        except MlflowException:  # made meanwhile by a project elsewhere that records on the same server
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
        else:
            return Runs(client, str(created), {KIND_TAG: KIND})
    if experiment.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(experiment.experiment_id)
    return Runs(client, str(experiment.experiment_id), experiment.tags)


def all_runs(client: MlflowClient, experiment_ids: list[str], filter_string: str = "") -> Iterator[MlflowRun]:
    """Yield the runs of experiments that fit MLflow's filter, newest first."""
    order, token = ["attributes.start_time DESC"], None
    while True:
        page = client.search_runs(experiment_ids, filter_string, order_by=order, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
