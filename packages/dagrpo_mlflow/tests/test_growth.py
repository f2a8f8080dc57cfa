"""How the work for one more run grows with the runs of its seed, and with other experiments."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.tracking import MlflowClient
from packages.dagrpo_mlflow.tests.conftest import (
    STARTED,
    execution,
    finish,
    stage_record,
    write,
)
from packages.dagrpo_mlflow.tests.test_pages import page

from dagrpo_mlflow import record
from dagrpo_mlflow.curve import Step
from dagrpo_mlflow.read import Contents
from dagrpo_mlflow.runs import Runs, open_experiment
from dagrpo_mlflow.sync import record_what_is_new, sync


def counted(patched: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of requests for runs by their kind, counted from now on."""
    count: Counter[str] = Counter()

    def watch(name: str) -> None:
        whole = getattr(SqlAlchemyStore, name)

        def call(*arguments: Any, **options: Any) -> Any:
            count[name] += 1
            return whole(*arguments, **options)

        patched.setattr(SqlAlchemyStore, name, call)

    for name in (
        "search_runs",
        "log_batch",
        "get_run",
        "create_run",
        "update_run_info",
        "set_tag",
        "get_metric_history",
    ):
        watch(name)
    return count


def test_a_training_and_its_report_are_recorded_in_few_requests(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"group/metric {number}" for number in range(90)]
    steps = [Step(step, STARTED + step, dict.fromkeys(names, 1 / step)) for step in range(1, 21)]
    count = counted(monkeypatch)
    write(
        project,
        execution(stage_record("train")),
        Contents(steps=steps),
    )
    assert count["log_batch"] == 3, "two with the seed's 1,800 points, and one with all of the stage"
    assert count["get_metric_history"] == count["get_run"] == 0
    write(project, execution(stage_record("report", None)), Contents(summaries=[page()]))
    assert count["get_metric_history"] == 0
    assert count["search_runs"] == 2


def test_one_more_experiment_is_recorded_without_a_look_at_the_others(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    looked_at: list[list[str]] = []

    def noted(client: MlflowClient, name: str, artifacts: str | None) -> Runs:
        looked_at[-1].append(name)
        return open_experiment(client, name, artifacts)

    monkeypatch.setattr(record, "open_experiment", noted)
    monkeypatch.setattr(record, "contents_of", lambda execution: Contents())
    for name in ("first", "second", "third"):
        finish(project, stage_record("model", experiment=name), {f"models/{name}/tiny/manifest.json": "2" * 64})
        looked_at.append([])
        assert record_what_is_new() == ""
    assert looked_at == [["first"], ["second"], ["third"]]
    looked_at.append([])
    assert sync() == 0
    assert looked_at[-1] == ["first", "second", "third"]
