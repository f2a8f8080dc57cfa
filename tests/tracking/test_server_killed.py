"""A real MLflow server that is killed in the middle of three stages, and started again, has all that they left."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.tracking.conftest import accounted, finish, runs_of, stage_record

from dagrpo.engine.sglang.server import free_port
from dagrpo.tracking import sync
from dagrpo.tracking.attempt import FOLDER, noted
from dagrpo.tracking.curve import Curve
from dagrpo.tracking.store import open_client
from dagrpo.tracking.store_address import tracking_uri

SECONDS = 180  # for anything, on a busy machine
POINTS = [(1, 0.25), (2, 0.5), (3, 0.75)]


@contextmanager
def _server(folder: Path, port: int) -> Iterator[None]:
    """Run MLflow's server on a database in a folder; at the end it is killed with its workers, as if the power went."""
    stored = ("--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "files"))
    command = (sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1")
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("a") as log:
        process = subprocess.Popen((*command, *stored), env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_until(lambda: _answers(port))
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
        return True
    return False


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@dataclass
class _Stage:
    """A training that works, as MLflow follows it."""

    seed: int
    record: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.record = stage_record(seed=self.seed)
        self.log = Path(f"logs/demo/seed_{self.seed}/train.log")
        self.log.parent.mkdir(parents=True)
        self._noted = noted(self.record, {}, {"git.commit": "abc"}, self.log)
        self._note = self._noted.__enter__()
        self.curve = Curve(self.log)

    def follow(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen((sys.executable, "-m", "dagrpo.tracking.follow", str(FOLDER / f"{self._note}.json")))

    def end(self) -> None:
        path = self.log.with_suffix(".curve.jsonl")
        steps = path.read_text()
        accounted(finish(Path.cwd(), self.record, {self.record["outputs"][0]: "2" * 64}), self.log, note=self._note)
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


@pytest.mark.nightly
def test_a_server_that_is_killed_in_the_middle_of_three_stages_and_started_again_has_all_of_them(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port(None)
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    with _server(fresh, port):
        stages = [_Stage(seed) for seed in range(3)]
        followers = [stage.follow() for stage in stages]
        for stage in stages:
            stage.curve.add(1, {"reward": 0.25})
        _wait_until(lambda: _curves(fresh) == [("RUNNING", POINTS[:1])] * 3)
    for stage in stages:
        stage.curve.add(2, {"reward": 0.5})
    assert [follower.wait(SECONDS) for follower in followers] == [0, 0, 0]
    stages[0].curve.add(3, {"reward": 0.75})
    stages[0].end()
    trouble = sync.record_what_is_new()
    assert "does not answer" in trouble
    assert "No result is lost" in trouble
    with _server(fresh, port):
        assert sync.record_what_is_new() == ""
        for stage in stages[1:]:
            stage.curve.add(3, {"reward": 0.75})
            stage.end()
        assert sync.record_what_is_new() == ""
        assert _curves(fresh) == [("FINISHED", POINTS)] * 3
