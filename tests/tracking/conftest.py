"""A project folder with an embedded MLflow database, and stages that run in it."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dagrpo.tracking.store import open_client, tracking_uri

# What a stage does in a process of its own, up to the point where the test decides how it ends.
PROGRAM = """
import json, os, signal, sys, time
from dagrpo.errors import Terminated
from dagrpo.tracking.runs import stage_run

def terminate(signum, frame):
    raise Terminated(128 + signum)

signal.signal(signal.SIGTERM, terminate)
with stage_run(json.loads(sys.argv[1])) as run:
    run.log_metrics({"loss": 0.5}, step=1)
    print("started", flush=True)
    """

StartStage = Callable[..., "subprocess.Popen[str]"]


def stage_record(stage: str = "train", seed: int | None = 0, **changes: Any) -> dict[str, Any]:
    """What the stage frame passes to stage_run."""
    folder = "models/demo/tiny" if seed is None else f"results/demo/runs/seed_{seed}/{stage}"
    record = {
        "stage": stage,
        "experiment": "demo",
        "overrides": {},
        "seed": seed,
        "params": {"training": {"steps": 3, "levels": ["a", "b"]}},
        "code": "c" * 64,
        "key": "e" * 64,
        "inputs": {"data/demo/train.parquet": "1" * 64},
        "outputs": [f"{folder}/manifest.json", f"{folder}/provenance.json"],
    }
    return record | changes


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables; making them takes seconds, copying them does not."""
    root = tmp_path_factory.mktemp("database")
    open_client(f"sqlite:///{root}/mlflow.db")
    with closing(sqlite3.connect(root / "mlflow.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return root / "mlflow.db"


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without a database; journals are sent when a test says so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("DAGRPO_TRACKING", "later")
    return tmp_path


@pytest.fixture
def project(fresh: Path, empty_database: Path) -> Path:
    """A project in which runs have been recorded before."""
    shutil.copy(empty_database, fresh / "mlflow.db")
    return fresh


@pytest.fixture
def start_stage(fresh: Path) -> StartStage:
    """Start a stage as a process; the second argument is its last line of Python."""

    def start(record: Mapping[str, Any], ending: str = "pass") -> "subprocess.Popen[str]":
        command = (sys.executable, "-c", PROGRAM + ending, json.dumps(record))
        return subprocess.Popen(command, cwd=fresh, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return start


def runs_of(root: Path, name: str = "demo") -> list[Any]:
    """Every run of an experiment, oldest first."""
    client = open_client(tracking_uri(root))
    experiment = client.get_experiment_by_name(name)
    found = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"]) if experiment else []
    return list(found)


def stage_runs(root: Path) -> list[Any]:
    """The runs of executed stages, oldest first."""
    return [run for run in runs_of(root) if run.data.tags["role"] == "stage"]


def parent_runs(root: Path) -> dict[str, Any]:
    """The parent runs by the seed they stand for."""
    return {run.data.tags["seed"]: run for run in runs_of(root) if run.data.tags["role"] == "parent"}
