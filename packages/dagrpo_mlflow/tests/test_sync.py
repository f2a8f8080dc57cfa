"""A sync records what results hold in MLflow, once, however often it runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from packages.dagrpo_mlflow.tests.conftest import (
    SEED,
    STARTED,
    accounted,
    finish,
    history,
    parent_runs,
    prepared,
    stage_record,
    stage_runs,
    trained,
)

from dagrpo_mlflow import sync
from dagrpo_mlflow.store import open_client, tracking_uri


def test_results_are_recorded_once(project: Path) -> None:
    trained(project)
    assert sync.sync() == 1
    once = history(project)
    assert sync.sync() == 0
    assert history(project) == once
    (run,), (parent,) = stage_runs(project), parent_runs(project).values()
    assert (run.info.run_name, run.info.status, run.data.tags["rebuilt"]) == (
        "train",
        "FINISHED",
        "from provenance.json",
    )
    assert run.data.params == {"training.steps": "2"}
    assert run.data.tags["input.data/demo/train.parquet"] == "1" * 64
    assert run.data.tags[f"output.{SEED}/policy/manifest.json"] == "b" * 64
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    client = open_client(tracking_uri(project))
    points = client.get_metric_history(parent.info.run_id, "reward/mean")
    assert [(point.step, point.value) for point in points] == [(1, 0.25), (2, 0.5)]
    (held_out,) = client.get_metric_history(parent.info.run_id, "held_out/sums/greedy")
    assert (held_out.step, held_out.value) == (0, 0.25)
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["metrics.json"]


def test_times_commit_and_configuration_are_those_of_the_account_beside_the_log(project: Path) -> None:
    accounted(trained(project), project / "logs/demo/seed_0/train.log")
    assert sync.sync() == 1
    (run,), (parent,) = stage_runs(project), parent_runs(project).values()
    assert (run.info.start_time, run.info.end_time) == (STARTED, STARTED + 60_000)
    assert (run.data.tags["git.commit"], run.data.tags["mlflow.user"]) == ("abc", "alice")
    assert (parent.info.run_name, parent.data.params) == ("seed 0, 403581bc", {"training.steps": "2"})
    client = open_client(tracking_uri(project))
    points = client.get_metric_history(parent.info.run_id, "reward/mean")
    assert [point.timestamp - STARTED for point in points] == [1000, 2000], "when the stage reported them"
    assert parent.data.metrics["timing/update_seconds"] == 2.0


def test_a_try_is_a_variation_of_its_experiment(project: Path) -> None:
    record = stage_record(experiment="demo~403581bc", overrides={"training.steps": 3})
    finish(project, record, {"results/demo~403581bc/m.json": "2" * 64})
    assert sync.sync() == 1
    (parent,) = parent_runs(project).values()
    assert parent.info.run_name == "seed 0, steps=3"
    assert parent.data.tags["override.training.steps"] == "3"


def test_stages_are_recorded_in_the_order_of_the_dag(project: Path) -> None:
    trained(project)
    manifests = {name: f"{SEED}/{name}/manifest.json" for name in ("policy", "exported")}
    for stage, name in (("export", "exported"), ("sample", "sampled")):
        read = {"export": manifests["policy"], "sample": manifests["exported"]}[stage]
        made = {manifests[name]: "b" * 64} if name in manifests else {"results/demo/completions.parquet": "c" * 64}
        finish(project, stage_record(stage, inputs={read: "b" * 64}, params={}), made, f"{name}.provenance.json")
    os.utime(project / SEED / "policy/provenance.json", (2e9, 2e9))  # pulled last
    assert sync.sync() == 3
    assert [run.data.tags["stage"] for run in stage_runs(project)] == ["train", "export", "sample"]


def test_a_moved_project_is_recorded_anew_beside_the_experiment_of_its_old_place(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(project)
    sync.sync()
    moved = project.rename(project.with_name(f"{project.name}-moved"))
    monkeypatch.chdir(moved)
    assert [sync.sync(), sync.sync()] == [1, 0]
    (run,) = stage_runs(moved)
    client = open_client(tracking_uri(moved))
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["metrics.json"]
    assert sorted(each.name for each in client.search_experiments())[1:] == [
        "demo",
        f"demo, 1, of {project}/mlartifacts",
    ]


def test_nothing_new_takes_no_import_of_mlflow_and_a_lost_database_is_filled_again(
    project: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(project)
    for mode in ("later", "off"):
        monkeypatch.setenv("DAGRPO_TRACKING", mode)
        assert sync.record_what_is_new() == ""
        assert stage_runs(project) == []
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    assert sync.record_what_is_new() == ""
    assert len(stage_runs(project)) == 1
    code = "import sys; from dagrpo_mlflow.sync import record_what_is_new; "
    code += "assert record_what_is_new() == ''; assert 'mlflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    prepared(project)
    assert sync.record_what_is_new(every_s=3600) == "", "under DVC not after each stage"
    assert len(stage_runs(project)) == 1
    assert sync.record_what_is_new() == ""
    assert len(stage_runs(project)) == 2
    for file in project.glob("mlflow.db*"):
        file.unlink()
    shutil.copy(empty_database, project / "new.db")
    (project / "new.db").rename(project / "mlflow.db")  # another file
    assert sync.record_what_is_new() == ""
    assert len(stage_runs(project)) == 2, "a database that was deleted is made anew"


def test_while_another_process_records_one_waits_and_says_so(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(project)
    (project / ".state").mkdir(exist_ok=True)
    lock, notices = FileLock(project / sync.LOCK), []

    def say(notice: str) -> None:
        notices.append(notice)
        lock.release()

    monkeypatch.setattr(sync, "SECONDS_BEFORE_NOTICE", 0.1)
    monkeypatch.setattr(sync, "say", say)
    lock.acquire()
    assert sync.sync() == 1
    assert len(notices) == 1
    assert notices[0].startswith("Another process is recording runs in MLflow: waiting for it.")
