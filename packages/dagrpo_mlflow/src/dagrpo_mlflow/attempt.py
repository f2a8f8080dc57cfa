"""Notes on executions that are at work or have failed, as JSON.

One file each.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.pipeline.curve import now_ms
from dagrpo.utils.failures import words_of
from dagrpo.utils.files import read_object, remove, write_json
from dagrpo.utils.locks import Process
from dagrpo_mlflow.store import database_path, require_recording, tracking_uri
from dagrpo_mlflow.variations import recording_root

MODE = "DAGRPO_TRACKING"
MODES = ("on", "off", "later")
FOLDER = Path(".state/executions")
LOG = Path(".state/tracking.log")
MAX_LOG_BYTES = 1 << 20
SECONDS_BEFORE_FOLLOWING = 20.0  # most stages end sooner than MLflow is imported
logger = logging.getLogger(__name__)


def mode() -> str:
    """Return when runs are recorded, from DAGRPO_TRACKING. Raises UserError for an unknown value.

    on, the default: after each workflow, and while a stage works for more than 20 seconds; later: by `dagrpo ui` and
    `dagrpo tracking rebuild` alone, for machines that do not reach the MLflow server; off: as later, and no failures.
    """
    chosen = os.environ.get(MODE) or "on"
    if chosen not in MODES:
        raise UserError(f"{MODE}={chosen} is not known: set it to one of {', '.join(MODES)}.")
    return chosen


def leave_database_to_the_head() -> None:
    """Keep the stages of this process from writing an embedded database, which several machines would damage on a shared disk."""
    if _is_for_one_machine():
        os.environ[MODE] = "later"


def follow_jobs(experiments: Collection[str]) -> None:
    """Start followers of the stages of experiments that work in jobs of SLURM and leave the database to this machine.

    One thread looks for all of them, since a sweep has up to 1,000.
    """
    if _is_for_one_machine():
        threading.Thread(target=_follow_jobs, args=(experiments,), daemon=True, name="follow-jobs").start()


def _is_for_one_machine() -> bool:
    return mode() == "on" and database_path(tracking_uri(recording_root(Path.cwd()))) is not None


def _follow_jobs(experiments: Collection[str]) -> None:
    followed: set[Path] = set()
    while True:
        time.sleep(SECONDS_BEFORE_FOLLOWING)
        for note in set(FOLDER.glob("[0-9]*.json")) - followed:
            followed.add(note)
            if works_in_a_job(note, experiments):
                _follow(note)


def works_in_a_job(note: Path, experiments: Collection[str]) -> bool:
    """Return True if a note is of a stage of these experiments that works in a job of SLURM."""
    try:
        content = read_object(note)
        is_own = content["record"]["experiment"] in experiments
        return bool(is_own and content["status"] == "RUNNING" and content["process"].get("slurm_job"))
    except (UserError, KeyError, TypeError, AttributeError):  # it has ended meanwhile, or its note is damaged
        return False


@contextmanager
def noted(
    record: Mapping[str, Any], configuration: Mapping[str, Any], facts: Mapping[str, str], log: Path
) -> Iterator[str]:
    """Keep a note about this execution, which stays if it fails; have MLflow follow a long one.

    Yields the note's name without suffix, "" where DAGRPO_TRACKING is off.
    record: of provenance.json, with the paths of all outputs; facts: commit, versions, hardware.
    Raises UserError, before any work, if MLFLOW_TRACKING_URI does not name a store for runs.
    """
    chosen = mode()
    if chosen == "off":
        yield ""
        return
    require_recording(tracking_uri(recording_root(Path.cwd())))
    note = FOLDER / f"{now_ms()}-{record['stage']}-{uuid.uuid4().hex[:8]}.json"
    about = {"record": record, "configuration": configuration, "facts": facts, "log": str(log), "started": now_ms()}
    content = about | {"process": asdict(Process.current()), "status": "RUNNING", "ended": None, "error": ""}
    _write(note, content)
    timer = threading.Timer(SECONDS_BEFORE_FOLLOWING, _follow, (note,))
    timer.daemon = True
    if chosen == "on":
        timer.start()
    try:
        yield note.stem
    except BaseException as error:
        is_terminated = isinstance(error, SystemExit) and error.code == 128 + signal.SIGTERM
        is_stop = is_terminated or isinstance(error, KeyboardInterrupt)
        ended = {"status": "KILLED", "error": ""} if is_stop else {"status": "FAILED", "error": words_of(error)}
        _write(note, content | ended | {"ended": now_ms()})
        raise
    else:
        with suppress(OSError):  # a sync removes the note of an execution whose results are there
            remove(note)
    finally:
        timer.cancel()


def _write(note: Path, content: Mapping[str, Any]) -> None:
    try:
        write_json(note, content)
    except OSError as error:
        logger.warning("a failure of this execution will not be in MLflow: %s cannot be written (%s)", note, error)


def _follow(note: Path) -> None:
    """Start a follower process, since an import of MLflow in a thread doubles the duration of the trainer's steps meanwhile."""
    try:
        if LOG.exists() and LOG.stat().st_size > MAX_LOG_BYTES:
            LOG.unlink()
        with LOG.open("ab") as output:
            command = (sys.executable, "-m", "dagrpo_mlflow.follow", str(note))
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    except OSError as error:
        logger.warning("MLflow cannot follow this run: %s", error)
