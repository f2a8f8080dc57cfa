"""How the work for one more run grows with the runs of its seed."""

from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from tests.tracking.conftest import STARTED, execution, parent_runs, stage_record, stage_runs, write

from dagrpo.tracking.parents import PARENT
from dagrpo.tracking.store import open_client
from dagrpo.tracking.store_address import tracking_uri


def _add_siblings(project: Path, count: int) -> None:
    """Add finished runs of other stages below the parent of seed 0."""
    client, parent = open_client(tracking_uri(project)), parent_runs(project)["0"]
    for number in range(count):
        tags = {PARENT: parent.info.run_id, "role": "stage", "identity": f"sibling {number}"}
        sibling = client.create_run(parent.info.experiment_id, STARTED, tags)
        client.set_terminated(sibling.info.run_id, end_time=STARTED + number)


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
