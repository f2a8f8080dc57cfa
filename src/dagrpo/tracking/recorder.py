"""Brings one journal into MLflow. Importing this module imports MLflow, which takes seconds: only a delivery does.

What becomes of each kind of event stands in the modules `recorded_...`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mlflow.tracking import MlflowClient

from dagrpo.errors import UserError
from dagrpo.tracking.environment import Process
from dagrpo.tracking.events import Event
from dagrpo.tracking.journal import last_sign_of_life, progress_of, read_events, remember_progress, start_of
from dagrpo.tracking.names import tag_value
from dagrpo.tracking.opening import log_digests, open_run
from dagrpo.tracking.parents import settle_parent
from dagrpo.tracking.recorded import Recorded
from dagrpo.tracking.recorded_files import bring_artifact, bring_data_set, bring_table
from dagrpo.tracking.recorded_pages import bring_page_of_seed
from dagrpo.tracking.recorded_points import bring_points
from dagrpo.tracking.recorded_policies import bring_policy_made, bring_problems, bring_traces

logger = logging.getLogger(__name__)


class Recorder:
    """One journal and its run. May be interrupted anywhere: the next one takes up where progress was last saved.

    What is delivered twice changes nothing: MLflow ignores a point, param, tag or data set that a run has already, and
    files are replaced.
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
            self._run_id = open_run(self._client, self._folder, self._start)
        run = Recorded(client=self._client, folder=self._folder, start=self._start, run_id=self._run_id)
        gone = superseded or self._process.is_gone  # asked first: what it wrote before it ended is read below
        events, offset = read_events(self._folder, self._offset)
        bring_points(run, events)
        bring_others(run, events)
        end = next((event for event in events if event["event"] == "end"), None)
        if end is not None:
            _close(run, end["status"], end["time"])
        elif gone:
            _close(run, "KILLED", last_sign_of_life(self._folder))
        else:
            remember_progress(self._folder, offset, self._run_id)
        return end is not None or gone


def bring_others(run: Recorded, events: Sequence[Event]) -> None:
    """Every event but points, in its order. One that is damaged is left out, and said so."""
    for event in events:
        if event["event"] in HANDLERS:
            try:
                HANDLERS[event["event"]](run, event)
            except UserError as error:
                logger.warning("%s: %s is left out of the record: %s", run.folder, event["event"], error)


def _add_tags(run: Recorded, event: Event) -> None:
    for name, value in event["values"].items():
        run.client.set_tag(run.run_id, name, tag_value(value))


def _bring_outputs(run: Recorded, event: Event) -> None:
    log_digests(run.client, run.run_id, "output", event["digests"])
    bring_policy_made(run, event)


def _bring_error(run: Recorded, event: Event) -> None:
    run.client.set_tag(run.run_id, "error", tag_value(event["words"]))


def _close(run: Recorded, status: str, time_ms: int) -> None:
    run.client.set_terminated(run.run_id, status, time_ms)
    settle_parent(run.client, run.parent)


HANDLERS: Mapping[str, Callable[[Recorded, Event], None]] = {
    "artifact": bring_artifact,
    "table": bring_table,
    "dataset": bring_data_set,
    "problems": bring_problems,
    "traces": bring_traces,
    "page": bring_page_of_seed,
    "tags": _add_tags,
    "outputs": _bring_outputs,
    "error": _bring_error,
}
