"""Brings one journal into MLflow. Importing this module imports MLflow, which takes seconds: only a delivery does."""

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ENDPOINT_NOT_FOUND, ErrorCode
from mlflow.tracing.client import TracingClient
from mlflow.tracking import MlflowClient

from dagrpo.errors import UserError
from dagrpo.files import read_json
from dagrpo.tracking.environment import Process
from dagrpo.tracking.events import Event
from dagrpo.tracking.experiments import close_dead_runs, find_execution, find_experiment, process_tags, run_name
from dagrpo.tracking.journal import (
    identity,
    last_sign_of_life,
    progress_of,
    read_events,
    remember_progress,
    start_of,
)
from dagrpo.tracking.names import digest_list, file_tag, flatten, metric_name, tag_value
from dagrpo.tracking.pages import Page, bring_page, curve_points, log_points
from dagrpo.tracking.parents import (
    CURVES,
    ENTRIES_PER_BATCH,
    PARENT,
    WITH_CURVES,
    attempts_before,
    describe,
    find_parent,
    seed_tag,
    settle_parent,
    variation_tags,
)
from dagrpo.tracking.policies import bring_policies, register
from dagrpo.tracking.traces import log_traces, made_of
from dagrpo.tracking.variations import experiment_name
from dagrpo.tracking.views import experiment_tags
from dagrpo.visible import one_line

MAX_DATASET_DIGEST = 36
ATTEMPT = "attempt"
LOGGED_ARTIFACTS = "mlflow.loggedArtifacts"  # a run's tables, for MLflow's load_table and its table view
logger = logging.getLogger(__name__)


class Recorder:
    """One journal and its run. May be interrupted anywhere: the next one takes up where progress was last saved.

    What is delivered twice changes nothing: MLflow ignores a point, param, tag or data set that a run has already, and
    files are replaced. (MlflowClient.log_table would append, so tables are written as files here.)
    """

    def __init__(self, folder: Path, client: MlflowClient) -> None:
        self._folder = folder
        self._client = client
        self._start = start_of(folder)
        self._process = Process(**self._start["process"])
        self._offset, self._run_id = progress_of(folder)

    def advance(self, *, superseded: bool) -> bool:
        """Bring over what is new; True when the run is closed. `superseded`: the same outputs are being made anew."""
        if not self._run_id:
            self._run_id = self._open()
        gone = superseded or self._process.is_gone  # asked first: what it wrote before it ended is read below
        events, offset = read_events(self._folder, self._offset)
        self._bring(events)
        end = next((event for event in events if event["event"] == "end"), None)
        if end is not None:
            self._close(end["status"], end["time"])
        elif gone:
            self._close("KILLED", last_sign_of_life(self._folder))
        else:
            remember_progress(self._folder, offset, self._run_id)
        return end is not None or gone

    def _open(self) -> str:
        record = self._start["record"]
        experiment = find_experiment(self._client, experiment_name(record), self._start["artifacts"])
        run_id = find_execution(self._client, experiment, self._folder.name)
        if run_id is None:
            close_dead_runs(self._client, experiment, identity(self._start))
            parent = find_parent(self._client, experiment, self._start, record["seed"])
            self._client.update_run(parent, "RUNNING")
            describe(self._client, parent, self._start)
            attempt = 1 + attempts_before(self._client, parent, identity(self._start))
            tags = self._tags(record) | {PARENT: parent, ATTEMPT: str(attempt)}
            run = self._client.create_run(experiment, self._start["time"], tags, run_name(record, attempt))
            run_id = str(run.info.run_id)
        params = [Param(name, value) for name, value in flatten(record["params"]).items()]
        for part in _batches(params, ENTRIES_PER_BATCH):
            self._client.log_batch(run_id, params=part)
        self._log_digests(run_id, "input", record["inputs"])
        return run_id

    def _tags(self, record: Mapping[str, Any]) -> dict[str, str]:
        tags = {name: record[name] for name in ("stage", "key", "code")} | {"experiment": experiment_name(record)}
        tags |= {"role": "stage", "seed": seed_tag(record), "execution": self._folder.name}
        tags |= variation_tags(record, self._start.get("variation", ""))
        tags |= {"taken_from": record["taken_from"]} if "taken_from" in record else {}
        tags |= {"identity": identity(self._start), "mlflow.source.name": f"src/dagrpo/stages/{record['stage']}.py"}
        tags |= {"mlflow.source.type": "LOCAL"} | self._start["tags"] | process_tags(self._process)
        return {name: tag_value(value) for name, value in tags.items()}

    def _bring(self, events: Sequence[Event]) -> None:
        points = [point for event in events if event["event"] == "metrics" for point in _points(event)]
        log_points(self._client, self._run_id, points)
        self._bring_curves(points)
        handlers: dict[str, Callable[[Event], None]] = {
            "artifact": self._artifact,
            "table": self._table,
            "dataset": self._dataset,
            "traces": self._traces,
            "page": self._page,
            "tags": self._add_tags,
            "outputs": lambda event: self._log_digests(self._run_id, "output", event["digests"]),
            "error": lambda event: self._client.set_tag(self._run_id, "error", tag_value(event["words"])),
        }
        for event in events:
            if event["event"] in handlers:
                try:
                    handlers[event["event"]](event)
                except UserError as error:
                    logger.warning("%s: %s is left out of the record: %s", self._folder, event["event"], error)

    def _bring_curves(self, points: Sequence[Metric]) -> None:
        """The curves of training to the run of the seed, too: one whole curve, however often it was killed and resumed."""
        stage = self._start["record"]["stage"]
        own = [point for point in points if not point.key.startswith("system/")]
        if stage not in WITH_CURVES or not own:
            return
        tags = self._client.get_run(self._run_id).data.tags
        parent = tags[PARENT]
        if tags.get(ATTEMPT, "1") != "1":  # a stage that goes on tells its earlier steps again
            held = {key: self._steps_of(parent, key) for key in {point.key for point in own}}
            own = [point for point in own if point.step not in held[point.key]]
        log_points(self._client, parent, own)
        if stage == "train":
            self._client.set_tag(parent, CURVES, stage)

    def _steps_of(self, run_id: str, key: str) -> set[int]:
        return {point.step for point in self._client.get_metric_history(run_id, key)}

    def _page(self, event: Event) -> None:
        """To the run of that seed, which other stages may have made under another configuration, or nobody."""
        try:
            page = Page.model_validate(event["page"])
        except ValueError as error:
            raise UserError(f"a page of another version: {one_line(str(error), 200)}") from error
        experiment = self._client.get_run(self._run_id).info.experiment_id
        run_id = find_parent(self._client, experiment, self._start, event["seed"])
        describe(self._client, run_id, self._start)
        bring_page(self._client, run_id, page, self._curves(event), event["time"])
        for name, value in experiment_tags(map(metric_name, page.figures)).items():
            self._client.set_experiment_tag(experiment, name, value)
        if event["seed"] is not None:
            self._policies(experiment, run_id, str(event["seed"]), page, event["time"])
        settle_parent(self._client, run_id, event["time"])

    def _curves(self, event: Event) -> list[Metric]:
        if not event["curves"]:
            return []
        with self._file({"file": event["curves"]}) as path:
            return curve_points(path, event["time"])

    def _policies(self, experiment: str, run_id: str, seed: str, page: Page, time_ms: int) -> None:
        """A server too old for models goes without them."""
        try:
            models = bring_policies(self._client, experiment, run_id, seed, page, time_ms)
            name, variation = experiment_name(self._start["record"]), self._start.get("variation", "")
            register(self._client, name, run_id, seed, models, page.of_a_variation() if variation else page)
        except MlflowException as error:
            if error.error_code != ErrorCode.Name(ENDPOINT_NOT_FOUND):
                raise
            logger.warning("the policies of a run are left out: %s", error)

    def _add_tags(self, event: Event) -> None:
        for name, value in event["values"].items():
            self._client.set_tag(self._run_id, name, tag_value(value))

    @contextmanager
    def _file(self, event: Event) -> Iterator[Path]:
        """The file that an event refers to. Whatever it cannot be used for is a UserError: only this event is left out."""
        path = self._folder / event["file"]
        try:
            if not (path.is_file() and path.resolve().is_relative_to(self._folder.resolve())):
                raise UserError("it is no file of the journal")
            yield path
        except Exception as error:  # the border to a file that may be damaged
            raise UserError(f"{path}: {type(error).__name__}: {one_line(str(error), 200)}") from error

    def _artifact(self, event: Event) -> None:
        with self._file(event) as path:
            folder = PurePosixPath(event["folder"])
            if folder.is_absolute() or ".." in folder.parts:
                raise UserError(f"{folder} is no folder of a run")
        self._client.log_artifact(self._run_id, str(path), event["folder"] or None)
        if (
            self._start["record"]["stage"] == "report" and not event["folder"]
        ):  # what whoever lands on the whole looks for
            self._client.log_artifact(self._client.get_run(self._run_id).data.tags[PARENT], str(path))

    def _table(self, event: Event) -> None:
        """The file that MlflowClient.log_table would write first, and its mark on the run."""
        file = f"{event['name']}.json"
        with self._file(event) as path:
            table = pd.DataFrame(pq.read_table(path).to_pydict())
            text = table.to_json(orient="split", index=False, date_format="iso")
        self._client.log_text(self._run_id, text, file)
        marks = json.loads(self._client.get_run(self._run_id).data.tags.get(LOGGED_ARTIFACTS, "[]"))
        if (mark := {"path": file, "type": "table"}) not in marks:
            self._client.set_tag(self._run_id, LOGGED_ARTIFACTS, json.dumps([*marks, mark]))

    def _traces(self, event: Event) -> None:
        experiment = self._client.get_run(self._run_id).info.experiment_id
        name = f"{self._folder.name}/{event['file']}"
        with self._file(event) as path:
            traces = made_of(
                read_json(path)["traces"],
                experiment=experiment,
                run_id=self._run_id,
                name=name,
                time_ms=event["time"],
            )
        log_traces(TracingClient(self._client.tracking_uri), traces, experiment)

    def _dataset(self, event: Event) -> None:
        columns = [{"name": name, "type": kind, "required": True} for name, kind in event.get("columns", {}).items()]
        profile = {"num_rows": event.get("rows"), "bytes": event["bytes"], "sha256": event["digest"]}
        dataset = Dataset(
            name=event["name"],
            digest=event["digest"][:MAX_DATASET_DIGEST],
            source_type="local",
            source=json.dumps({"uri": event["path"]}),
            schema=json.dumps({"mlflow_colspec": columns}),
            profile=json.dumps(profile),
        )
        context = InputTag("mlflow.data.context", event["context"])
        self._client.log_inputs(self._run_id, [DatasetInput(dataset, [context])])

    def _log_digests(self, run_id: str, kind: str, digests: Mapping[str, str]) -> None:
        tags = [RunTag(file_tag(kind, path), digest) for path, digest in sorted(digests.items())]
        tags.append(RunTag(f"{kind}s", digest_list(digests)))
        for part in _batches(tags, ENTRIES_PER_BATCH):
            self._client.log_batch(run_id, tags=part)

    def _close(self, status: str, time_ms: int) -> None:
        self._client.set_terminated(self._run_id, status, time_ms)
        settle_parent(self._client, self._client.get_run(self._run_id).data.tags[PARENT])


def _points(event: Event) -> list[Metric]:
    return [
        Metric(metric_name(name), math.nan if value is None else value, event["time"], event["step"])
        for name, value in event["values"].items()
    ]


def _batches(entries: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [entries[start : start + size] for start in range(0, len(entries), size)]
