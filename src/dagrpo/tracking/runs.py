"""Runs of an MLflow experiment, fetched once; requests have what is new.

A server with passwords takes some tenths of a second for each request: params, tags and points wait until `flush` or `close`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from mlflow.entities import (
    DatasetInput,
    Experiment,
    LifecycleStage,
    LoggedModelInput,
    LoggedModelOutput,
    Metric,
    Param,
    RunTag,
)
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking import MlflowClient

from dagrpo.core.errors import UserError
from dagrpo.tracking.curve import now_ms
from dagrpo.tracking.names import tag_value
from dagrpo.tracking.store_address import ARTIFACTS, database_path
from dagrpo.tracking.views import KIND, KIND_TAG

PARENT = "mlflow.parentRunId"
MOST_ENTRIES, MOST_PARAMS, MOST_TAGS = 1000, 100, 100  # of a request, as MLflow takes them
Series = dict[int, list[float]]  # {step: values}, more than one where attempts differ


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """A run of MLflow, and what it has as far as this process knows."""

    client: MlflowClient
    run_id: str
    name: str
    status: str
    started: int  # milliseconds since 1970
    ended: int | None
    artifacts: str  # where its files are
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)  # the latest values
    steps: dict[str, int] = field(default_factory=dict)  # of these
    data_sets: set[tuple[str, str]] = field(default_factory=set)  # name and digest
    models_read: set[str] = field(default_factory=set)  # ids
    models_made: set[str] = field(default_factory=set)
    is_new: bool = False  # created by this process
    _histories: dict[str, Series] = field(default_factory=dict)
    _new_params: list[Param] = field(default_factory=list)  # to be sent
    _new_tags: list[RunTag] = field(default_factory=list)
    _new_points: list[Metric] = field(default_factory=list)
    _files: ArtifactRepository | None = None

    @classmethod
    def of(cls, client: MlflowClient, run: MlflowRun, *, is_new: bool = False) -> Self:
        """Return a run as MLflow has answered it."""
        inputs, outputs = run.inputs, run.outputs
        return cls(
            client=client,
            run_id=str(run.info.run_id),
            name=str(run.info.run_name),
            status=run.info.status,
            started=run.info.start_time,
            ended=run.info.end_time or None,
            artifacts=str(run.info.artifact_uri),
            params=dict(run.data.params),
            tags=dict(run.data.tags),
            metrics=dict(run.data.metrics),
            steps={each.key: each.step for each in run.data._metric_objs},
            data_sets={(each.dataset.name, each.dataset.digest) for each in (inputs.dataset_inputs if inputs else ())},
            models_read={each.model_id for each in (inputs.model_inputs if inputs else ())},
            models_made={each.model_id for each in (outputs.model_outputs if outputs else ())},
            is_new=is_new,
        )

    def log(
        self,
        *,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, object] | None = None,
        points: Iterable[Metric] = (),
    ) -> None:
        """Add params, tags and points of curves that the run lacks."""
        new_params = {key: value for key, value in (params or {}).items() if self.params.get(key) != value}
        texts = {key: tag_value(value) for key, value in (tags or {}).items()}
        new_tags = {key: value for key, value in texts.items() if self.tags.get(key) != value}
        self._new_params += [Param(key, value) for key, value in new_params.items()]
        self._new_tags += [RunTag(key, value) for key, value in new_tags.items()]
        self._new_points += (new_points := list(points))
        self.params |= new_params
        self.tags |= new_tags
        for point in new_points:
            self.metrics[point.key], self.steps[point.key] = point.value, point.step
            if point.key in self._histories:
                self._histories[point.key].setdefault(point.step, []).append(point.value)

    def flush(self) -> None:
        """Send what `log` has added, in as few requests as MLflow's limits allow."""
        self._new_tags = [*{tag.key: tag for tag in self._new_tags}.values()]
        while self._new_params or self._new_tags or self._new_points:
            params, tags = self._new_params[:MOST_PARAMS], self._new_tags[:MOST_TAGS]
            points = self._new_points[: MOST_ENTRIES - len(params) - len(tags)]
            self.client.log_batch(self.run_id, metrics=points, params=params, tags=tags)
            del self._new_params[: len(params)], self._new_tags[: len(tags)], self._new_points[: len(points)]

    def write_file(self, name: str, content: bytes, folder: str = "") -> None:
        """Write a file beside the run. Unlike MlflowClient, it takes no request to find the folder."""
        self._files = self._files or get_artifact_repository(self.artifacts, tracking_uri=self.client.tracking_uri)
        with TemporaryDirectory(prefix="dagrpo-") as temporary:
            path = Path(temporary, name)
            path.write_bytes(content)
            self._files.log_artifact(str(path), folder or None)

    def history(self, key: str) -> Series:
        """Return the values of a metric by step, asked once."""
        if key not in self._histories:
            self.flush()
            known = self.client.get_metric_history(self.run_id, key) if key in self.metrics else []
            series: Series = {}
            for point in known:
                series.setdefault(point.step, []).append(point.value)
            self._histories[key] = series
        return self._histories[key]

    def remove_tag(self, name: str) -> None:
        """Remove a tag, if it is there."""
        if self.tags.pop(name, None) is not None:
            self.flush()
            self.client.delete_tag(self.run_id, name)

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
        """Make data sets, and models by their ids, inputs of the run."""
        new_data = {(each.dataset.name, each.dataset.digest): each for each in data}
        new_data = {key: each for key, each in new_data.items() if key not in self.data_sets}
        new_models = [model for model in dict.fromkeys(models) if model not in self.models_read]
        if new_data or new_models:
            links = [LoggedModelInput(model) for model in new_models]
            self.client.log_inputs(self.run_id, list(new_data.values()), links)
            self.data_sets |= new_data.keys()
            self.models_read |= {*new_models}

    def make(self, model_id: str, step: int) -> None:
        """Make a model an output of the run. MLflow would refuse a repeated link."""
        if model_id not in self.models_made:
            self.client.log_outputs(self.run_id, [LoggedModelOutput(model_id, step)])
            self.models_made.add(model_id)


class Runs:
    """The runs of an MLflow experiment, newest first, with those that this process adds."""

    def __init__(self, client: MlflowClient, experiment_id: str, tags: Mapping[str, str]) -> None:
        self.client = client
        self.experiment_id = experiment_id
        self._tags = dict(tags)  # of the experiment
        self._runs = [Run.of(client, run) for run in all_runs(client, [experiment_id])]
        self._answers: dict[tuple[str, ...], Any] = {}

    def by_id(self, run_id: str) -> Run:
        """Return the run with an id. Raises UserError if it was deleted."""
        for run in self._runs:
            if run.run_id == run_id:
                return run
        raise UserError(
            f"the run {run_id}, which has stages below it, was deleted: restore it in MLflow, or delete these too."
        )

    def where(self, **tags: str) -> Iterator[Run]:
        """Yield the runs with these tags."""
        wanted = tags.items()
        return (run for run in self._runs if wanted <= run.tags.items())

    def create(self, name: str, started: int, tags: Mapping[str, object]) -> Run:
        """Create a run. started: milliseconds since 1970."""
        texts = {key: tag_value(value) for key, value in tags.items()}
        run = self.client.create_run(self.experiment_id, started, texts, name)
        created = Run.of(self.client, run, is_new=True)
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

    def once(self, *key: str, ask: Callable[[], Any]) -> Any:
        """Return the answer to a question about the experiment that is asked once; again after a None."""
        if self._answers.get(key) is None:
            self._answers[key] = ask()
        return self._answers[key]


def open_experiment(client: MlflowClient, name: str, artifacts: str | None) -> Runs:
    """Return the runs of the MLflow experiment of that name, created or restored from the bin if necessary.

    After a move of the project another one gets the name, the one of this place if there is one; that of the old place stays under a
    longer one.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is not None and _is_moved(client, experiment, artifacts):
        client.rename_experiment(
            experiment.experiment_id, f"{name}, {experiment.experiment_id}, of {experiment.artifact_location}"
        )
        experiment = _of_this_place(client, name, artifacts)
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
    runs = Runs(client, str(experiment.experiment_id), experiment.tags)
    runs.tag({KIND_TAG: KIND})
    return runs


def _of_this_place(client: MlflowClient, name: str, artifacts: str | None) -> Experiment | None:
    """Return the experiment that had the name before the project was moved away from here, renamed back; None without one."""
    for experiment in client.search_experiments():
        if experiment.name.startswith(f"{name}, ") and experiment.artifact_location == artifacts:
            client.rename_experiment(experiment.experiment_id, name)
            return experiment
    return None


def _is_moved(client: MlflowClient, experiment: Experiment, artifacts: str | None) -> bool:
    """Return True if the embedded database lies elsewhere than when it got this experiment: MLflow keeps files at absolute paths."""
    place = Path(experiment.artifact_location)
    is_embedded = artifacts is not None and database_path(client.tracking_uri) is not None
    return is_embedded and str(place) != artifacts and place.name == ARTIFACTS


def all_runs(client: MlflowClient, experiment_ids: list[str], filter_string: str = "") -> Iterator[MlflowRun]:
    """Yield the runs of experiments that fit MLflow's filter, newest first."""
    order, token = ["attributes.start_time DESC"], None
    while True:
        page = client.search_runs(experiment_ids, filter_string, order_by=order, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
