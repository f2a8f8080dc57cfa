"""Follower of an active stage: logs its metrics and the machine's."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from dagrpo.core.errors import UserError
from dagrpo.core.redaction import hide_secrets_in_streams, hide_secrets_in_tracebacks
from dagrpo_mlflow.curve import read_curve
from dagrpo_mlflow.execution import of_note
from dagrpo_mlflow.parents import open_run
from dagrpo_mlflow.record import Target, write_steps
from dagrpo_mlflow.runs import open_experiment
from dagrpo_mlflow.store import artifact_location, open_client, require_answer, tracking_uri
from dagrpo_mlflow.sync import LOCK
from dagrpo_mlflow.variations import recording_root

SECONDS = 10.0  # between two looks


def follow(note: Path, pause_s: float = SECONDS) -> None:
    """Log a stage's metrics and the machine's load until the stage ends. The next sync closes the run.

    Raises UserError, or MLflow's errors, if it takes nothing now; the next sync records the missing points.
    """
    target = _opened(note)
    execution = target.execution
    assert execution.log is not None
    is_here = execution.process is None or execution.process.is_here
    monitor = _start_monitor(target, pause_s) if is_here else None
    offset, works = 0, True
    while works:
        works = _works(note)  # the last look is after the end, for the last steps
        try:
            steps, offset = read_curve(execution.log, since=execution.started, offset=offset)
        except ValueError:  # the next attempt has replaced the file meanwhile
            steps, offset = [], 0
        write_steps(target, steps)
        target.runs.flush()
        if works:
            time.sleep(pause_s)
    if monitor is not None:
        monitor.finish()


def _opened(note: Path) -> Target:
    """Open the run of a stage. Raises UserError if the stage has ended meanwhile.

    Under the lock of a sync: one that comes later finds the run and closes it, and one that came before has removed the note.
    """
    home = recording_root(Path.cwd())
    uri = tracking_uri(home)
    require_answer(uri)
    with FileLock(home / LOCK):
        execution = of_note(note)
        if execution.status != "RUNNING":
            raise UserError("it has ended")
        client = open_client(uri)
        runs = open_experiment(client, execution.experiment, artifact_location(uri, home))
        run = open_run(runs, execution)
    return Target(runs=runs, run=run, execution=execution)


def _works(note: Path) -> bool:
    try:
        return of_note(note).status == "RUNNING"
    except UserError:  # it has ended well
        return False


def _start_monitor(target: Target, pause_s: float) -> SystemMetricsMonitor | None:
    """Let a thread of MLflow log the machine's load: percentages, megabytes (10^6) and watts."""
    with suppress(AttributeError):  # psutil sees no network
        monitor = SystemMetricsMonitor(target.run.run_id, pause_s, tracking_uri=target.client.tracking_uri)
        monitor.start()
        return monitor
    return None


def main(note: Path) -> None:
    """Follow a stage; if that ends early, print why in one line to the log that the streams lead to."""
    os.nice(10)  # the stages come first
    hide_secrets_in_tracebacks()
    hide_secrets_in_streams()
    try:
        follow(note)
    except Exception as error:  # noqa: BLE001  the next sync records what is missing
        print(f"{note.stem} cannot be followed in MLflow: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
