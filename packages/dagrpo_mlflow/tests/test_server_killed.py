"""A real MLflow server that is killed and restarted misses no record."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from packages.dagrpo_mlflow.tests.conftest import accounted, finish, runs_of, stage_record
from packages.dagrpo_mlflow.tests.mlflow_server import PASSWORD, SECONDS, Server, of_the_docs, on_sqlite
from tests.waiting import wait_until

from dagrpo.pipeline.curve import Curve
from dagrpo_mlflow import sync
from dagrpo_mlflow.attempt import FOLDER, noted
from dagrpo_mlflow.store import open_client, tracking_uri

POINTS = [(1, 0.25), (2, 0.5), (3, 0.75)]


@dataclass
class _Stage:
    """A fine-tuning that works, as MLflow follows it."""

    seed: int
    record: dict[str, Any] = field(init=False)
    began: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))

    def __post_init__(self) -> None:
        self.record = stage_record("sft", seed=self.seed)
        self.log = Path(f"logs/demo/seed_{self.seed}/sft.log")
        self.log.parent.mkdir(parents=True)
        self._noted = noted(self.record, {}, {"git.commit": "abc"}, self.log)
        self._note = self._noted.__enter__()
        self.curve = Curve(self.log)

    def follow(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen((sys.executable, "-m", "dagrpo_mlflow.follow", str(FOLDER / f"{self._note}.json")))

    def end(self) -> None:
        path = self.log.with_suffix(".curve.jsonl")
        steps = path.read_text()
        provenance = finish(Path.cwd(), self.record, {self.record["outputs"][0]: "2" * 64})
        seconds = (datetime.now(UTC) - self.began).total_seconds()
        accounted(provenance, self.log, note=self._note, started=self.began.isoformat(), seconds=seconds)
        path.write_text(steps)
        self._noted.__exit__(None, None, None)


def _curves(root: Path) -> list[tuple[str, list[tuple[int, float]]]]:
    """Return the state and the points of the run of each seed, in order."""
    client = open_client(tracking_uri(root))
    parents = sorted(
        (run for run in runs_of(root) if run.data.tags["role"] == "parent"), key=lambda run: run.data.tags["seed"]
    )
    points = (client.get_metric_history(run.info.run_id, "reward") for run in parents)
    return [
        (run.info.status, [(each.step, each.value) for each in own]) for run, own in zip(parents, points, strict=True)
    ]


@pytest.fixture(params=[on_sqlite, of_the_docs])
def server(request: pytest.FixtureRequest, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Yield a server that is not started. The runs of this project go to it."""
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    with request.param(fresh) as server:
        for name, value in {"MLFLOW_TRACKING_URI": server.uri, **server.credentials}.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.nightly
def test_a_server_that_is_killed_in_the_middle_of_three_stages_and_started_again_has_all_of_them(
    server: Server, fresh: Path
) -> None:
    with server.running():
        stages = [_Stage(seed) for seed in range(3)]
        followers = [stage.follow() for stage in stages]
        for stage in stages:
            stage.curve.add(1, {"reward": 0.25})
        wait_until(lambda: _curves(fresh) == [("RUNNING", POINTS[:1])] * 3, SECONDS)
    for stage in stages:
        stage.curve.add(2, {"reward": 0.5})
    assert [follower.wait(SECONDS) for follower in followers] == [0, 0, 0]
    stages[0].curve.add(3, {"reward": 0.75})
    stages[0].end()
    trouble = sync.record_what_is_new()
    assert "does not answer" in trouble
    assert "No result is lost" in trouble
    with server.running():
        assert sync.record_what_is_new() == ""
        for stage in stages[1:]:
            stage.curve.add(3, {"reward": 0.75})
            stage.end()
        assert sync.record_what_is_new() == ""
        assert _curves(fresh) == [("FINISHED", POINTS)] * 3


@pytest.mark.nightly
def test_the_server_of_the_docs_names_a_wrong_password_and_stores_files_with_the_right_one(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    finish(fresh, stage_record("teacher", None), {"models/demo/teacher/manifest.json": "3" * 64})
    with of_the_docs(fresh) as server, server.running():
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
        assert "401" in sync.record_what_is_new()
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
        client = open_client(server.uri)
        run = client.create_run(client.create_experiment("demo")).info.run_id
        client.log_text(run, "kept by S3", "note.txt")
        assert Path(client.download_artifacts(run, "note.txt", str(fresh))).read_text() == "kept by S3"
