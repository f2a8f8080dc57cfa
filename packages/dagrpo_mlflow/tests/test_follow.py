"""A long stage is seen running, and the sync after it completes the same run."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from packages.dagrpo_mlflow.tests.conftest import (
    StartStage,
    accounted,
    finish,
    parent_runs,
    runs_of,
    stage_record,
    stage_runs,
)

from dagrpo.core.errors import UserError
from dagrpo.pipeline.curve import Curve
from dagrpo_mlflow.attempt import FOLDER, noted
from dagrpo_mlflow.follow import follow
from dagrpo_mlflow.store import open_client, tracking_uri
from dagrpo_mlflow.sync import sync

LOG = Path("stage.log")


def wait_for(project: Path, metric: str) -> None:
    """Wait until a run shows a metric."""
    give_up = time.monotonic() + 120
    while not any(metric in run.data.metrics for run in runs_of(project)):
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_a_stage_that_works_long_is_seen_running_with_its_curve_and_the_load_of_its_machine(project: Path) -> None:
    record = stage_record()
    log = Path("logs/demo/seed_0/train.log")
    log.parent.mkdir(parents=True)
    with noted(record, {}, {"git.commit": "abc"}, log) as name:
        (note,) = FOLDER.iterdir()
        follower = threading.Thread(target=follow, args=(note, 0.05))
        follower.start()
        curve = Curve(log)
        curve.add(1, {"reward": 0.1})
        wait_for(project, "reward")
        wait_for(project, "system/cpu_utilization_percentage")
        (running,) = stage_runs(project)
        assert running.info.status == "RUNNING"
        assert 0 < running.data.metrics["system/system_memory_usage_percentage"] <= 100
        assert "system/disk_usage_megabytes" in running.data.metrics
        curve.add(2, {"reward": 0.2})
        accounted(finish(project, record, {record["outputs"][0]: "2" * 64}), project / log, note=name)
    follower.join(60)
    assert not follower.is_alive()
    assert stage_runs(project)[0].info.status == "RUNNING", "until a sync"
    assert sync() == 1
    (run,) = stage_runs(project)
    assert (run.info.run_id, run.info.status) == (running.info.run_id, "FINISHED")
    assert parent_runs(project)["0"].info.status == "FINISHED"


def test_following_ends_with_a_stage_that_was_killed_and_its_curve_is_there_once(
    project: Path, start_stage: StartStage
) -> None:
    process = start_stage(stage_record(), "curve.add(2, {'loss': 0.25}); time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    (note,) = FOLDER.iterdir()
    follower = threading.Thread(target=follow, args=(note, 0.05))
    follower.start()
    wait_for(project, "loss")
    process.kill()
    process.communicate()
    follower.join(60)
    assert not follower.is_alive()
    assert sync() == 1
    (run,) = stage_runs(project)
    assert run.info.status == "KILLED"
    parent = parent_runs(project)["0"].info.run_id
    points = open_client(tracking_uri(project)).get_metric_history(parent, "loss")
    assert [(point.step, point.value) for point in points] == [(1, 0.5), (2, 0.25)]


def test_a_follower_that_starts_after_the_sync_opens_no_run(project: Path) -> None:
    record = stage_record()
    with noted(record, {}, {}, LOG):
        (note,) = FOLDER.iterdir()
        finish(project, record, {record["outputs"][0]: "2" * 64})
    assert sync() == 1
    with pytest.raises(UserError, match=f"{note} is missing"):
        follow(note)
    assert [run.info.status for run in stage_runs(project)] == ["FINISHED"]


@pytest.mark.nightly
def test_a_follower_whose_server_is_away_ends_with_one_line(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://alice:s3cret@127.0.0.1:9")
    with noted(stage_record(), {}, {}, LOG):
        (note,) = FOLDER.iterdir()
        command = [sys.executable, "-m", "dagrpo_mlflow.follow", str(note)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"{note.stem} cannot be followed in MLflow: UserError: The MLflow server at http://127.0.0.1:9"
    )
