"""Failures, kills and damaged files are recorded, whenever a sync was interrupted."""

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from packages.dagrpo_mlflow.tests.conftest import (
    SEED,
    Crash,
    CrashingClient,
    StartStage,
    accounted,
    finish,
    history,
    parent_runs,
    prepared,
    stage_record,
    stage_runs,
    trained,
)

from dagrpo.core.errors import UserError
from dagrpo.utils.tables import write_parquet
from dagrpo_mlflow import record, sync
from dagrpo_mlflow.attempt import FOLDER, noted
from dagrpo_mlflow.store import open_client


def test_a_failure_that_a_killed_sync_has_recorded_is_recorded_once(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError), noted(stage_record(), {}, {}, Path("train.log")):
        raise UserError("row 3: no answer.")
    with monkeypatch.context() as patched:
        patched.setattr(record, "remove", lambda note: None)
        assert sync.sync() == 1
    assert sync.sync() == 0
    assert len(stage_runs(project)) == 1
    assert list(FOLDER.iterdir()) == []


def test_a_stage_that_is_killed_late_has_all_of_its_curve(project: Path, start_stage: StartStage) -> None:
    start_stage(stage_record(), "os.kill(os.getpid(), signal.SIGKILL)").communicate()
    curve = project / "stage.curve.jsonl"
    late = json.loads(curve.read_text())["time"] + 3_600_000
    with curve.open("a") as file:
        file.write(json.dumps({"step": 2, "time": late, "values": {"loss": 0.25}}) + "\n")
    os.utime(curve, ns=(late * 1_000_000,) * 2)
    assert sync.sync() == 1
    (run,) = stage_runs(project)
    assert (run.info.status, run.info.end_time, run.data.tags["git.commit"]) == ("KILLED", late, "abc")
    assert parent_runs(project)["0"].data.metrics == {"loss": 0.25}


def test_a_stage_that_was_killed_after_its_last_output_is_no_killed_run(project: Path, start_stage: StartStage) -> None:
    process = start_stage(stage_record(), "time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    finish(project, stage_record(), {f"{SEED}/policy/manifest.json": "2" * 64})
    process.kill()
    process.communicate()
    sync.sync()
    assert [run.info.status for run in stage_runs(project)] == ["FINISHED"]


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.nightly), 10])
def test_a_sync_that_dies_after_any_call_is_completed_by_the_next(
    fresh: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    def project(name: str) -> Path:
        root = fresh / name
        accounted(trained(root), root / "logs/demo/seed_0/train.log")
        prepared(root)
        shutil.copy(empty_database, root)
        monkeypatch.chdir(root)
        return root

    whole = project("whole")
    assert sync.sync() == 2
    expected = {key: value for key, value in history(whole).items() if "start" not in key}
    for calls in range(1, 100, stride):
        root = project(f"crashes_after_{calls}")
        with monkeypatch.context() as patched:
            patched.setattr(record, "open_client", lambda uri, calls=calls: CrashingClient(open_client(uri), calls))
            try:
                sync.sync()
                break
            except Crash:
                pass
        sync.sync()
        assert history(root) == expected, f"after {calls} calls"
    assert calls > 10


def test_figures_of_a_changed_file_are_left_out_until_it_is_brought_back(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(project)
    metrics = (project / SEED / "metrics.parquet").read_bytes()
    write_parquet(project / SEED / "metrics.parquet", pa.table({"step": [1], "reward/mean": [9.0]}))
    assert sync.sync() == 1
    (parent,) = parent_runs(project).values()
    assert parent.data.metrics == {}
    assert "metrics.parquet is missing or has changed: restore it with `dvc pull`" in capsys.readouterr().err
    assert sync.sync() == 0, "the run is there already"
    (run,) = stage_runs(project)
    assert "metrics.parquet is missing or has changed" in run.data.tags["incomplete"]
    (project / SEED / "metrics.parquet").write_bytes(metrics)
    assert sync.sync() == 1
    assert sync.sync() == 0
    (run,), (parent,) = stage_runs(project), parent_runs(project).values()
    assert not run.data.tags["incomplete"]
    assert (run.info.status, parent.info.status) == ("FINISHED", "FINISHED")
    assert parent.data.metrics["reward/mean"] == 0.5


def test_an_experiment_with_a_damaged_file_keeps_none_of_the_others_from_mlflow(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(project)
    damaged = project / "results/other/provenance.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    assert sync.sync() == 1
    assert "other is not recorded in MLflow: results/other/provenance.json" in capsys.readouterr().err


def test_a_note_that_its_stage_removes_while_a_sync_looks_is_passed_over(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    trained(project)
    FOLDER.mkdir(parents=True)
    (FOLDER / "1-score-gone.json").symlink_to("removed")
    assert sync.record_what_is_new() == ""
    assert len(stage_runs(project)) == 1
