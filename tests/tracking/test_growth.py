"""How the work for one more run grows with the runs of its seed, and with other experiments."""

from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from tests.tracking.conftest import (
    SEED,
    STARTED,
    execution,
    finish,
    parent_runs,
    stage_record,
    stage_runs,
    trained,
    write,
)

from dagrpo.tracking import record
from dagrpo.tracking.contents import Contents
from dagrpo.tracking.parents import PARENT
from dagrpo.tracking.stage_runs import StageRuns
from dagrpo.tracking.store import open_client
from dagrpo.tracking.store_address import tracking_uri
from dagrpo.tracking.sync import record_what_is_new, sync, try_to_sync


def _add_siblings(project: Path, count: int) -> None:
    """Add finished runs of other stages below the parent of seed 0."""
    client, parent = open_client(tracking_uri(project)), parent_runs(project)["0"]
    for number in range(count):
        tags = {PARENT: parent.info.run_id, "role": "stage", "identity": f"sibling {number}"}
        sibling = client.create_run(parent.info.experiment_id, STARTED, tags)
        client.set_terminated(sibling.info.run_id, end_time=STARTED + number)


@pytest.mark.nightly
def test_no_more_runs_are_fetched_for_one_more_run_of_a_seed_however_many_it_has(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, execution(stage_record("teacher"), status="FAILED", outputs={}))
    fetched: list[int] = []
    search_runs = MlflowClient.search_runs

    def counted(client: MlflowClient, *arguments: Any, **options: Any) -> Any:
        page = search_runs(client, *arguments, **options)
        fetched[-1] += len(page)
        return page

    for more, stage in ((5, "score"), (15, "sample"), (60, "report")):
        _add_siblings(project, more)
        fetched.append(0)
        with monkeypatch.context() as patched:
            patched.setattr(MlflowClient, "search_runs", counted)
            write(project, execution(stage_record(stage), ended=STARTED + 9_000))
    assert fetched == [fetched[0]] * 3
    assert fetched[0] <= 6
    assert len(stage_runs(project)) == 80 + 4
    parent = parent_runs(project)["0"]
    assert (parent.info.status, parent.info.end_time) == ("FAILED", STARTED + 9_000)


def test_one_more_experiment_is_recorded_without_a_look_at_the_others(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    looked_at: list[list[str]] = []

    class Counted(StageRuns):
        """Notes the MLflow experiments that it is asked for."""

        def __init__(self, client: MlflowClient, experiment_id: str) -> None:
            looked_at[-1].append(client.get_experiment(experiment_id).name)
            super().__init__(client, experiment_id)

    monkeypatch.setattr(record, "StageRuns", Counted)
    monkeypatch.setattr(record, "contents_of", lambda execution: Contents())
    for name in ("first", "second", "third"):
        finish(project, stage_record("model", experiment=name), {f"models/{name}/tiny/manifest.json": "2" * 64})
        looked_at.append([])
        assert record_what_is_new() == ""
    assert looked_at == [["first"], ["second"], ["third"]]
    looked_at.append([])
    assert sync() == 0
    assert looked_at[-1] == ["first", "second", "third"]


def test_an_experiment_whose_figures_could_not_be_read_is_looked_at_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    trained(project)
    metrics = project / SEED / "metrics.parquet"
    content = metrics.read_bytes()
    metrics.unlink()
    assert record_what_is_new() == ""
    assert try_to_sync() == ""
    metrics.write_bytes(content)
    assert try_to_sync() == ""
    (run,) = stage_runs(project)
    assert "incomplete" not in run.data.tags
