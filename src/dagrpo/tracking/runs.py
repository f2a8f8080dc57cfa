"""What a stage records about itself: the StageRun that the stage frame passes to it.

Recording costs a stage milliseconds: it writes a journal, which is delivered to MLflow afterwards (see
`dagrpo.tracking.journal` and `dagrpo.tracking.delivery`). The environment variable DAGRPO_TRACKING says how:

- `on` (the default): at the end of the workflow, and while it works for a stage that takes longer than 20 seconds;
- `later`: only by `make ui`, or by the next workflow without `later`; for machines that do not reach the MLflow server;
- `off`: nothing is recorded.
"""

import itertools
import logging
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagrpo.errors import UserError
from dagrpo.execution.failures import words_of
from dagrpo.files import write_json, write_parquet
from dagrpo.tracking.attempts import traces_of
from dagrpo.tracking.behind import behind
from dagrpo.tracking.delivery import last_trouble, start_following
from dagrpo.tracking.environment import environment_tags
from dagrpo.tracking.journal import Journal
from dagrpo.tracking.problems import problems_of
from dagrpo.tracking.store import artifact_location, require_recording, tracking_uri, without_password
from dagrpo.tracking.system import SystemMeter
from dagrpo.tracking.variations import recording_root, variation_name

MODE = "DAGRPO_TRACKING"
MODES = ("on", "off", "later")
SAMPLING_SECONDS = 10.0  # between two samples of system metrics
SAMPLES_BEFORE_FOLLOWING = 2  # a stage that lives to give so many is delivered while it works
EVALUATION = "evaluation"  # the context of a data set that policies are scored on
MAX_TABLE_ROWS = 1000  # a table of the UI is for reading; the whole one is the stage's output
logger = logging.getLogger(__name__)


class StageRun:
    """The record of one execution of a stage. Nothing here raises: a full disk, say, costs the record, not the stage.

    Without a journal it records nothing.
    """

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._warned: set[str] = set()

    def log_metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Points of learning curves. MLflow has no infinity; it is recorded as NaN, which a curve leaves out."""
        self._warn_of_infinities(values, step)
        finite = {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        self._record(lambda journal: journal.write("metrics", step=step, values=finite))

    def log_tags(self, values: Mapping[str, str]) -> None:
        """What is no number to draw, such as an interval."""
        self._record(lambda journal: journal.write("tags", values=dict(values)))

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """A file to look at beside the run (a figure, a report), as it is now."""

        def copy(journal: Journal) -> None:
            snapshot = journal.new_snapshot("") / path.name
            snapshot.parent.mkdir()
            shutil.copy2(path, snapshot)
            journal.write("artifact", file=str(snapshot.relative_to(journal.folder)), folder=folder)

        self._record(copy)

    def log_table(self, name: str, table: pa.Table) -> None:
        """A table to read in the UI, such as completions with their rewards; its first 1,000 rows."""

        def copy(journal: Journal) -> None:
            snapshot = journal.new_snapshot(".parquet")
            write_parquet(snapshot, table.slice(0, MAX_TABLE_ROWS))
            journal.write("table", file=str(snapshot.relative_to(journal.folder)), name=name)

        self._record(copy)

    def log_attempts(self, table: pa.Table, count: int) -> None:
        """Some attempts of a rollout table or a scores table, to look into in the UI turn by turn: as traces."""

        def write(journal: Journal) -> None:
            snapshot = journal.new_snapshot(".json")
            write_json(snapshot, {"traces": traces_of(table, count)})
            journal.write("traces", file=str(snapshot.relative_to(journal.folder)))

        if count:
            self._record(write)

    def log_dataset(self, path: Path, name: str, digest: str, context: str) -> None:
        """Data that the stage reads, named by its sha256: the footer of a parquet file, and what an evaluation asks."""

        def write(journal: Journal) -> None:
            journal.write("dataset", name=name, digest=digest, context=context, **_shape(path))
            if context == EVALUATION:
                snapshot = journal.new_snapshot(".json")
                write_json(snapshot, problems_of(path))
                journal.write("problems", name=name, digest=digest, file=str(snapshot.relative_to(journal.folder)))

        self._record(write)

    def log_page(self, seed: int | None, page: Mapping[str, Any], curves: pa.Table | None = None) -> None:
        """What the run of a seed, or of all of them (None), says when everything is known.

        `page` is as tracking.pages has it; `curves`: the metrics of the seed's training, a row for each step.
        """

        def write(journal: Journal) -> None:
            file = ""
            if curves is not None:
                snapshot = journal.new_snapshot(".parquet")
                write_parquet(snapshot, curves)
                file = str(snapshot.relative_to(journal.folder))
            journal.write("page", seed=seed, page=dict(page), curves=file)

        self._record(write)

    def log_outputs(self, digests: Mapping[str, str]) -> None:
        """{path: sha256} of what the stage has written."""
        self._record(lambda journal: journal.write("outputs", digests=dict(digests)))

    def log_error(self, words: str) -> None:
        """Why the stage fails: the tag `error` of its run."""
        self._record(lambda journal: journal.write("error", words=words))

    def end(self, status: str) -> None:
        """Close the record; `status` is one of MLflow's: FINISHED, FAILED, KILLED."""
        self._record(lambda journal: journal.write("end", status=status))
        self._record(Journal.close)

    def _record(self, action: Callable[[Journal], None]) -> None:
        if self._journal is None:
            return
        try:
            action(self._journal)
        except Exception as error:  # noqa: BLE001  the border between a stage's work and its record
            logger.warning("the record of this run is incomplete: %s: %s", type(error).__name__, error)

    def _warn_of_infinities(self, values: Mapping[str, float], step: int) -> None:
        infinite = {name for name, value in values.items() if math.isinf(value)} - self._warned
        self._warned |= infinite
        for name in sorted(infinite):
            logger.warning("the metric %s is infinite at step %d; recorded as NaN", name, step)


@contextmanager
def stage_run(record: Mapping[str, Any], configuration: Mapping[str, Any] | None = None) -> Iterator[StageRun]:
    """Record one execution of a stage and how it ends: FINISHED, FAILED on an exception, KILLED when told to stop.

    `record` has stage, experiment, seed, params, code, key, inputs {path: sha256} and outputs [path]; `configuration` has
    digest, seeds and changed parameters of the whole experiment; the working directory is the project's root. UserError,
    before any work, when the settings say nowhere that runs can be recorded.
    """
    mode = _mode()
    if mode == "off":
        yield StageRun(None)
        return
    journal = _begin(recording_root(Path.cwd()), record, configuration or {})
    run = StageRun(journal)
    try:
        with _attended(run, journal.folder if journal and mode == "on" else None):
            yield run
    except BaseException as error:
        killed = _was_told_to_stop(error)
        if not killed:
            run.log_error(words_of(error))
        run.end("KILLED" if killed else "FAILED")
        raise
    else:
        run.end("FINISHED")


def _mode() -> str:
    mode = os.environ.get(MODE) or "on"
    if mode not in MODES:
        raise UserError(f"{MODE}={mode} is not known: set it to one of {', '.join(MODES)}.")
    return mode


def _begin(root: Path, record: Mapping[str, Any], configuration: Mapping[str, Any]) -> Journal | None:
    """None, and a warning, where the journal cannot be written: the work goes on without a record."""
    uri = tracking_uri(root)
    require_recording(uri)
    try:
        return _journal(root, uri, record, configuration)
    except OSError as error:
        logger.warning("this run is not recorded: %s", error)
        return None


def _journal(root: Path, uri: str, record: Mapping[str, Any], configuration: Mapping[str, Any]) -> Journal:
    trouble = last_trouble(root)
    if trouble:
        logger.warning("earlier runs are not in MLflow yet: %s", trouble)
    start = {
        "uri": without_password(uri),
        "artifacts": artifact_location(uri, root),
        "tags": environment_tags(Path.cwd()),
        "variation": variation_name(record["experiment"]),
        "configuration": dict(configuration),
        "behind": behind(record["inputs"]),
    }
    return Journal.begin(root, record["stage"], {"record": dict(record), **start})


@contextmanager
def _attended(run: StageRun, folder: Path | None) -> Iterator[None]:
    """Sample the system in a thread while the stage works; have the journal in `folder` followed if that takes long."""
    stop = threading.Event()
    thread = threading.Thread(target=_attend, args=(run, folder, stop), daemon=True, name="system-metrics")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _attend(run: StageRun, folder: Path | None, stop: threading.Event) -> None:
    meter = SystemMeter()
    for sample in itertools.count():
        if stop.wait(SAMPLING_SECONDS):
            return
        run.log_metrics({f"system/{name}": value for name, value in meter.read().items()}, sample)
        if folder is not None and sample + 1 == SAMPLES_BEFORE_FOLLOWING:
            _follow(folder)


def _follow(folder: Path) -> None:
    try:
        start_following(folder)
    except OSError as error:
        logger.warning("this run is not delivered to MLflow while it works: %s", error)


def _was_told_to_stop(error: BaseException) -> bool:
    terminated = isinstance(error, SystemExit) and error.code == 128 + signal.SIGTERM
    return terminated or isinstance(error, KeyboardInterrupt)


def _shape(path: Path) -> dict[str, Any]:
    shape: dict[str, Any] = {"path": str(path), "bytes": path.stat().st_size}
    if path.suffix == ".parquet":
        footer = pq.read_metadata(path)
        schema = footer.schema.to_arrow_schema()
        shape |= {"rows": footer.num_rows, "columns": {field.name: str(field.type) for field in schema}}
    return shape
