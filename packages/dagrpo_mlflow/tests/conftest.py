"""A project folder with an embedded MLflow database, and executions of stages in it."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.evaluation.test_held_out import row

from dagrpo.evaluation.held_out_table import HELD_OUT
from dagrpo.utils.files import sha256_of, write_json
from dagrpo.utils.tables import write_parquet
from dagrpo_mlflow.execution import Execution
from dagrpo_mlflow.parents import settle_parents
from dagrpo_mlflow.read import Contents
from dagrpo_mlflow.record import write_run
from dagrpo_mlflow.runs import open_experiment
from dagrpo_mlflow.store import artifact_location, open_client, tracking_uri

SEED = Path("results/demo/runs/seed_0")
CHECKPOINTS = {
    "convert": "initial",
    "train": "policy",
    "export": "exported",
}  # folders that are not called like their stage
STARTED = 1_700_000_000_000  # milliseconds since 1970
# What a stage does in a process of its own, up to the point where the test decides how it ends.
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from dagrpo.core.errors import Terminated
from dagrpo_mlflow.attempt import noted
from dagrpo.pipeline.curve import Curve

def terminate(signum, frame):
    raise Terminated(128 + signum)

signal.signal(signal.SIGTERM, terminate)
with noted(json.loads(sys.argv[1]), {}, {"git.commit": "abc"}, Path("stage.log")):
    curve = Curve(Path("stage.log"))
    curve.add(1, {"loss": 0.5})
    print("started", flush=True)
    """

StartStage = Callable[..., "subprocess.Popen[str]"]


def stage_record(stage: str = "train", seed: int | None = 0, **changes: Any) -> dict[str, Any]:
    """What the stage frame passes to `noted`."""
    folder = "models/demo/tiny" if seed is None else f"results/demo/runs/seed_{seed}/{CHECKPOINTS.get(stage, stage)}"
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


def execution(record: Mapping[str, Any], **changes: Any) -> Execution:
    """Return an execution of a record, a finished one whose outputs all have the same digest unless `changes` say otherwise."""
    values: dict[str, Any] = {
        "source": Path(record["outputs"][-1]),
        "record": record,
        "places": tuple(record["outputs"]),
        "outputs": dict.fromkeys(record["outputs"][:-1], "2" * 64),
        "configuration": {},
        "facts": {"git.commit": "abc"},
        "started": STARTED,
        "ended": STARTED + 5000,
        "status": "FINISHED",
        "note": "" if changes.get("status", "FINISHED") == "FINISHED" else f"1-{record['stage']}",
    }
    return Execution(**(values | changes))


def write(root: Path, made: Execution, contents: Contents | None = None) -> None:
    """Write the run of an execution, as a sync does."""
    uri = tracking_uri(root)
    client = open_client(uri)
    runs = open_experiment(client, made.experiment, artifact_location(uri, root))
    write_run(runs, made, contents or Contents())
    settle_parents(runs)


def finish(root: Path, record: Mapping[str, Any], outputs: Mapping[str, str], name: str = "provenance.json") -> Path:
    """Write the provenance.json of an execution that has ended well. outputs: {path: sha256}"""
    path = root / Path(next(iter(outputs))).parent / name
    write_json(path, {**record, "outputs": dict(outputs)})
    return path


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
    """A project without a database; runs are recorded when a test says so."""
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


def trained(root: Path, **changes: Any) -> Path:
    """Write what a training of two steps leaves behind, as far as it is read here; return its provenance.json."""
    metrics, manifest, held_out = SEED / "metrics.parquet", SEED / "rollouts/manifest.json", SEED / "held_out.parquet"
    write_parquet(root / metrics, pa.table({"step": [1, 2], "reward/mean": [0.25, 0.5]}))
    write_json(root / manifest, {})
    rows = [row(0, "sums", problem, right=problem < 1) for problem in range(4)]
    write_parquet(root / held_out, pa.Table.from_pylist(rows, schema=HELD_OUT))
    outputs = {str(path): sha256_of(root / path) for path in (metrics, manifest, held_out)}
    outputs |= {str(SEED / "policy/manifest.json"): "b" * 64}
    path = root / SEED / "policy/provenance.json"
    write_json(path, stage_record(params={"training": {"steps": 2}}, **changes) | {"outputs": outputs})
    os.utime(path, (STARTED / 1000, STARTED / 1000))
    return path


def prepared(root: Path) -> Path:
    """Write the provenance.json of a stage without figures."""
    path = finish(root, stage_record("teacher", None), {"models/demo/teacher/manifest.json": "3" * 64})
    os.utime(path, (STARTED / 1000, STARTED / 1000))
    return path


def accounted(provenance: Path, log: Path, **changes: Any) -> None:
    """Write the account of an execution beside its log, and the curve that it has reported."""
    log.parent.mkdir(parents=True, exist_ok=True)
    account = {
        "provenance": sha256_of(provenance),
        "configuration": {"digest": "403581bc", "seeds": [0], "changed": {"training.steps": 2}},
        "started": "2023-11-14T22:13:20+00:00",  # STARTED
        "seconds": 60.0,
        "facts": {"git.commit": "abc", "mlflow.user": "alice"},
    }
    write_json(log.with_suffix(".execution.json"), account | changes)
    lines = [
        {"step": step, "time": STARTED + 1000 * step, "values": {"reward/mean": step / 4, "timing/update_seconds": 2.0}}
        for step in (1, 2)
    ]
    log.with_suffix(".curve.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def history(root: Path) -> dict[str, Any]:
    """Everything that MLflow holds about the runs of the experiment, but for ids that it draws itself."""
    client = open_client(tracking_uri(root))
    held: dict[str, Any] = {}
    found = sorted(runs_of(root), key=lambda run: (run.info.start_time, run.info.run_name))
    names = {run.info.run_id: f"run {number}" for number, run in enumerate(found)}
    for run_id, run in zip(names, found, strict=True):
        held[f"{names[run_id]}: status"] = run.info.status, run.info.start_time, run.info.end_time, run.info.run_name
        held |= {f"{names[run_id]}: param {name}": value for name, value in run.data.params.items()}
        held |= {f"{names[run_id]}: tag {name}": names.get(value, value) for name, value in run.data.tags.items()}
        for metric in run.data.metrics:
            points = client.get_metric_history(run_id, metric)
            held[f"{names[run_id]}: {metric}"] = [(point.step, point.timestamp, repr(point.value)) for point in points]
        held[f"{names[run_id]}: data"] = [entry.dataset.to_dictionary() for entry in run.inputs.dataset_inputs]
        held[f"{names[run_id]}: models"] = [each.step for each in run.outputs.model_outputs] if run.outputs else []
        files = root / "mlartifacts" / run_id / "artifacts"
        paths = [path for path in sorted(files.rglob("*")) if path.is_file()]
        held |= {f"{names[run_id]}: file {path.relative_to(files)}": path.read_bytes() for path in paths}
    return held


class Crash(BaseException):
    """Nothing in the package catches it, as nothing outlives a SIGKILL."""


class CrashingClient:
    """The real client, until its n-th call: that one does its work, but its caller does not live to see it."""

    def __init__(self, client: object, calls: float) -> None:
        self._client = client
        self._calls_left = calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            found = method(*arguments, **options)
            self._calls_left -= 1
            if self._calls_left == 0:
                raise Crash
            return found

        return call
