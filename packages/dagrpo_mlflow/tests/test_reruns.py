"""Several executions of one stage: each has its own run, and none stays open."""

import math
import os
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from packages.dagrpo_mlflow.tests.conftest import (
    STARTED,
    accounted,
    execution,
    finish,
    parent_runs,
    stage_record,
    stage_runs,
    write,
)
from tests.everyday import everyday

from dagrpo.core.errors import UserError
from dagrpo.utils.files import read_object, write_json
from dagrpo.utils.locks import Process
from dagrpo_mlflow import sync
from dagrpo_mlflow.attempt import FOLDER, noted
from dagrpo_mlflow.curve import Step
from dagrpo_mlflow.execution import Execution, of_note
from dagrpo_mlflow.parents import open_run
from dagrpo_mlflow.read import Contents
from dagrpo_mlflow.runs import open_experiment
from dagrpo_mlflow.store import artifact_location, open_client, tracking_uri

LOG = Path("logs/demo/seed_0/teacher.log")
RECORD = stage_record("teacher")  # without figures, so that its runs are complete
CONFIGURATION = {"digest": "403581bc", "seeds": [0], "changed": {"training.steps": 2}}
CURVES = [(1, 0.5), (2, 0.25), (3, math.nan)], [(1, 0.5), (2, 0.3), (3, math.nan), (4, 0.1)]
GONE = Process(pid=(1 << 22) + 1, started=0, host=socket.gethostname())  # above the kernel's largest number
ELSEWHERE = replace(GONE, host="elsewhere")


def show(project: Path, working: Execution) -> str:
    """Open the run of an execution as its follower does; return the run's id."""
    client, uri = open_client(tracking_uri(project)), tracking_uri(project)
    return open_run(open_experiment(client, "demo", artifact_location(uri, project)), working).run_id


def note_of(name: str) -> Path:
    return FOLDER / f"{name}.json"


def end_well(project: Path, note: str) -> None:
    """Write what a stage leaves behind that ends now."""
    provenance = finish(project, RECORD, {RECORD["outputs"][0]: "2" * 64})
    accounted(provenance, project / LOG, note=note, started=datetime.now(UTC).isoformat(timespec="seconds"))


def statuses(project: Path) -> dict[str, str]:
    return {run.info.run_name: run.info.status for run in stage_runs(project)}


def test_an_attempt_that_fails_is_a_run_with_its_reason_beside_the_next_which_succeeds(project: Path) -> None:
    """A follower of the next attempt leaves the failure of the one before for a sync to tell; the parent is open meanwhile."""
    with pytest.raises(UserError), noted(RECORD, CONFIGURATION, {}, LOG) as first:
        shown = show(project, replace(of_note(note_of(first)), process=GONE))
        raise UserError("the server died.")
    with noted(RECORD, CONFIGURATION, {}, LOG) as second:
        show(project, of_note(note_of(second)))
        assert set(statuses(project).values()) == {"RUNNING"}, "a sync will say why it failed"
        sync.sync()
        assert [run.info.status for run in parent_runs(project).values()] == ["RUNNING"]
        end_well(project, second)
    assert sync.sync() == 1
    assert not list(FOLDER.iterdir())
    assert statuses(project) == {"teacher": "FAILED", "teacher, attempt 2": "FINISHED"}
    failed = next(run for run in stage_runs(project) if run.info.run_id == shown)
    assert failed.data.tags["error"] == "the server died."
    assert [run.info.status for run in parent_runs(project).values()] == ["FINISHED"]


@pytest.mark.parametrize(
    "seed", everyday([0], range(4))
)  # ids of runs are drawn: a wrong order would be right by chance
def test_of_two_attempts_in_one_second_the_later_counts(project: Path, seed: int) -> None:
    record = stage_record("score", seed)
    write(project, execution(record, status="FAILED", outputs={}, started=STARTED + 200))
    write(project, execution(record, started=STARTED))
    assert parent_runs(project)[str(seed)].info.status == "FINISHED"


def test_a_rerun_that_makes_the_same_files_is_a_finished_run_of_its_own(project: Path) -> None:
    with noted(RECORD, CONFIGURATION, {}, LOG) as first:
        end_well(project, first)
    assert sync.sync() == 1
    with noted(RECORD, CONFIGURATION, {}, LOG) as second:
        show(project, of_note(note_of(second)))
        end_well(project, second)
    assert sync.sync() == 1
    assert sync.sync() == 0
    assert statuses(project) == {"teacher": "FINISHED", "teacher, attempt 2": "FINISHED"}
    assert [run.info.status for run in parent_runs(project).values()] == ["FINISHED"]


def test_runs_that_are_left_open_are_closed_where_their_process_is_certainly_gone(project: Path) -> None:
    write(project, execution(RECORD))
    finish(project, RECORD, {RECORD["outputs"][0]: "2" * 64})
    working = execution(RECORD, status="RUNNING", outputs={}, ended=None)
    of_another_clone = replace(working, process=Process.running(os.getpid()), note="1-clone")
    elsewhere, gone = replace(working, process=ELSEWHERE, note="2"), replace(working, process=GONE, note="3")
    ids = [show(project, each) for each in (gone, of_another_clone, elsewhere)]
    assert sync.sync() == 0
    after = {run.info.run_id: run.info.status for run in stage_runs(project)}
    assert [after[run_id] for run_id in ids] == ["KILLED", "RUNNING", "RUNNING"]
    assert len(after) == 4
    finish(project, RECORD, {RECORD["outputs"][0]: "3" * 64})
    assert sync.sync() == 1
    after = {run.info.run_id: run.info.status for run in stage_runs(project)}
    assert [after[run_id] for run_id in ids] == ["KILLED", "RUNNING", "RUNNING"]
    assert len(after) == 5, "neither of these two is taken for the execution that has ended here"


def test_the_curve_has_the_final_values_where_an_abandoned_attempt_had_others(project: Path) -> None:
    first = [Step(step, STARTED + step, {"loss": loss, "timing/update_seconds": 1.0}) for step, loss in CURVES[0]]
    second = [
        Step(step, STARTED + 1000 + step, {"loss": loss, "timing/update_seconds": 2.0}) for step, loss in CURVES[1]
    ]
    write(project, execution(stage_record(), status="KILLED", outputs={}), Contents(steps=first))
    for _ in range(2):  # as after a sync that was killed
        write(project, execution(stage_record(), started=STARTED + 1), Contents(steps=second))
    parent = parent_runs(project)["0"].info.run_id
    client = open_client(tracking_uri(project))
    times = client.get_metric_history(parent, "timing/update_seconds")
    assert sorted((point.step, point.value) for point in times) == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0)]
    points = client.get_metric_history(parent, "loss")
    assert sorted((point.step, point.timestamp - STARTED, str(point.value)) for point in points) == [
        (1, 1, "0.5"),
        (2, 2, "0.25"),
        (2, 1002, "0.3"),
        (3, 3, "nan"),
        (4, 1004, "0.1"),
    ]


def test_the_note_of_a_container_that_is_gone_is_dropped_once_its_outputs_are_there(project: Path) -> None:
    note = FOLDER / "1-train.json"
    with noted(RECORD, CONFIGURATION, {}, LOG) as name:
        process = {"pid": 1, "started": 0, "host": "container-1", "boot": ""}
        write_json(note, read_object(note_of(name)) | {"process": process})
    shown = show(project, of_note(note))
    assert sync.sync() == 0
    assert note.exists(), "it may be at work"
    with noted(RECORD, CONFIGURATION, {}, LOG) as second:
        end_well(project, second)
    assert sync.sync() == 1
    assert not note.exists()
    assert {run.info.run_id == shown: run.info.status for run in stage_runs(project)} == {
        True: "KILLED",
        False: "FINISHED",
    }
    assert (project / sync.SYNCED).exists(), "else every workflow would import MLflow"
