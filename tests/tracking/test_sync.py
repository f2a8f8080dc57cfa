"""What results hold is in MLflow once, wherever a sync was interrupted and however often it runs."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from filelock import FileLock
from mlflow.tracking import MlflowClient
from tests.evaluation.test_held_out import row
from tests.tracking.conftest import STARTED, StartStage, finish, parent_runs, runs_of, stage_record, stage_runs

from dagrpo.core.errors import UserError
from dagrpo.evaluation.held_out import HELD_OUT
from dagrpo.tracking import record, sync
from dagrpo.tracking.attempt import FOLDER, noted
from dagrpo.tracking.store import open_client, tracking_uri
from dagrpo.utils.files import sha256_of, write_json
from dagrpo.utils.tables import write_parquet

SEED = Path("results/demo/runs/seed_0")


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
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["held_out.parquet", "metrics.parquet"]


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


class Crash(BaseException):
    """Nothing in the package catches it, as nothing outlives a SIGKILL."""


class CrashingClient:
    """The real client, until its n-th call: that one does its work, but its caller does not live to see it."""

    def __init__(self, client: MlflowClient, calls: int) -> None:
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


def test_a_sync_that_dies_after_any_call_is_completed_by_the_next(
    fresh: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
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
    for calls in range(1, 100):
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
    assert calls > 30


def test_failures_are_recorded_with_their_reason_and_a_new_attempt_is_another_run(project: Path) -> None:
    record = stage_record("score")
    with pytest.raises(UserError), noted(record, {}, {"git.commit": "abc"}, Path("score.log")):
        raise UserError("row 3: no answer.")
    assert sync.sync() == 1
    assert list(FOLDER.iterdir()) == []
    assert parent_runs(project)["0"].info.status == "FAILED"
    (failed,) = stage_runs(project)
    assert (failed.info.status, failed.data.tags["error"]) == ("FAILED", "row 3: no answer.")
    finish(project, record, {f"{SEED}/score/manifest.json": "2" * 64})
    assert sync.sync() == 1
    assert [run.info.run_name for run in stage_runs(project)] == ["score", "score, attempt 2"]
    assert parent_runs(project)["0"].info.status == "FINISHED"


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


def test_a_stage_ended_by_sigkill_is_killed_with_what_it_reported(project: Path, start_stage: StartStage) -> None:
    start_stage(stage_record(), "os.kill(os.getpid(), signal.SIGKILL)").communicate()
    assert sync.sync() == 1
    (run,) = stage_runs(project)
    assert (run.info.status, run.data.tags["git.commit"]) == ("KILLED", "abc")
    assert parent_runs(project)["0"].data.metrics == {"loss": 0.5}


def test_a_stage_that_was_killed_after_its_last_output_is_no_killed_run(project: Path, start_stage: StartStage) -> None:
    process = start_stage(stage_record(), "time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    finish(project, stage_record(), {f"{SEED}/train/manifest.json": "2" * 64})
    process.kill()
    process.communicate()
    sync.sync()
    assert [run.info.status for run in stage_runs(project)] == ["FINISHED"]


def test_a_try_is_a_variation_of_its_experiment(project: Path) -> None:
    record = stage_record(experiment="demo~403581bc", overrides={"training.steps": 3})
    finish(project, record, {"results/demo~403581bc/m.json": "2" * 64})
    assert sync.sync() == 1
    (parent,) = parent_runs(project).values()
    assert parent.info.run_name == "seed 0, try 403581bc"
    assert parent.data.tags["override.training.steps"] == "3"


def test_figures_of_a_changed_file_are_left_out_until_it_is_brought_back(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(project)
    metrics = (project / SEED / "metrics.parquet").read_bytes()
    write_parquet(project / SEED / "metrics.parquet", pa.table({"step": [1], "reward/mean": [9.0]}))
    assert sync.sync() == 1
    (parent,) = parent_runs(project).values()
    assert parent.data.metrics == {}
    assert "metrics.parquet is missing or was changed: `dvc pull` brings it back" in capsys.readouterr().err
    assert sync.sync() == 0, "the run is there already"
    (run,) = stage_runs(project)
    assert "metrics.parquet is missing or was changed" in run.data.tags["incomplete"]
    (project / SEED / "metrics.parquet").write_bytes(metrics)
    assert sync.sync() == 1
    assert sync.sync() == 0
    (run,), (parent,) = stage_runs(project), parent_runs(project).values()
    assert "incomplete" not in run.data.tags
    assert (run.info.status, parent.info.status) == ("FINISHED", "FINISHED")
    assert parent.data.metrics["reward/mean"] == 0.5


def test_figures_that_cannot_be_read_for_a_reason_without_words_are_missed_by_its_kind(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(project, stage_record("sample"), {f"{SEED}/sampled/manifest.json": "2" * 64})
    assert sync.sync() == 1
    assert "sampled/provenance.json: recorded without figures: StopIteration" in capsys.readouterr().err


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


def test_an_experiment_with_a_damaged_file_keeps_none_of_the_others_from_mlflow(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(project)
    damaged = project / "results/other/provenance.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    assert sync.sync() == 1
    assert "other is not recorded in MLflow: results/other/provenance.json" in capsys.readouterr().err


def test_a_moved_project_is_recorded_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(project)
    sync.sync()
    moved = project.with_name(f"{project.name}-moved")
    project.rename(moved)
    monkeypatch.chdir(moved)
    assert sync.sync() == 0
    assert len(stage_runs(moved)) == 1


def test_nothing_new_takes_no_import_of_mlflow(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    trained(project)
    assert sync.record_what_is_new() == ""
    assert len(stage_runs(project)) == 1
    code = "import sys; from dagrpo.tracking.sync import record_what_is_new; "
    code += "assert record_what_is_new() == ''; assert 'mlflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    prepared(project)
    assert sync.record_what_is_new(every_s=3600) == "", "under DVC not after each stage"
    assert len(stage_runs(project)) == 1
    assert sync.record_what_is_new() == ""
    assert len(stage_runs(project)) == 2


def test_a_database_that_was_deleted_is_made_anew(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    trained(project)
    database = (project / "mlflow.db").read_bytes()
    sync.record_what_is_new()
    shutil.rmtree(project / "mlartifacts")
    for file in project.glob("mlflow.db*"):
        file.unlink()
    (project / "new.db").write_bytes(database)
    (project / "new.db").rename(project / "mlflow.db")
    assert sync.record_what_is_new() == ""
    assert len(stage_runs(project)) == 1


@pytest.mark.parametrize("mode", ["later", "off"])
def test_a_workflow_that_is_not_to_record_does_not(project: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", mode)
    trained(project)
    assert sync.record_what_is_new() == ""
    assert stage_runs(project) == []


def test_while_another_process_records_one_waits(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "SECONDS_TO_WAIT", 0.1)
    trained(project)
    (project / ".state").mkdir(exist_ok=True)
    with FileLock(project / sync.LOCK), pytest.raises(UserError, match="another process has been recording runs"):
        sync.sync()
    assert sync.sync() == 1


@contextmanager
def _refusing(status: int) -> Iterator[str]:
    """The address of a server that answers everything with one status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            """Silence."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "it refuses the credentials (401): set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        (503, "too many 503 error responses: see that it answers, or correct MLFLOW_TRACKING_URI"),
    ],
)
def test_a_server_that_refuses_costs_no_result_and_is_named_in_a_sentence(
    fresh: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, status: int, remedy: str
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    trained(fresh)
    with _refusing(status) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://alice:s3cret@{address}")
        trouble = sync.record_what_is_new()
    assert trouble.startswith(f"http://{address} cannot record runs: {remedy}")
    assert (
        "No result is lost: the next run, `dagrpo ui` or `dagrpo tracking rebuild` records what is missing." in trouble
    )
    assert "s3cret" not in trouble
    shutil.copy(empty_database, fresh / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert sync.record_what_is_new() == ""
    assert len(stage_runs(fresh)) == 1


def test_a_server_that_is_away_is_named_without_its_password(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://alice:s3cret@127.0.0.1:9")
    trained(fresh)
    trouble = sync.record_what_is_new()
    assert trouble.startswith("The MLflow server at http://127.0.0.1:9 does not answer (")
    assert not any(b"s3cret" in path.read_bytes() for path in fresh.rglob("*") if path.is_file())


def test_what_a_foreign_server_answers_reaches_no_terminal_as_it_is(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    trained(fresh)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"SSH-2.0 \x1b]0;owned\x07\r\n")

        threading.Thread(target=answer, daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        trouble = sync.record_what_is_new()
    assert trouble.startswith(
        f"What answers at {address} is no MLflow server (BadStatusLine: SSH-2.0 \\u001b]0;owned\\u0007)"
    )


def test_an_error_that_nobody_expected_is_told_without_control_characters(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(uri: str, artifacts: str | None) -> int:
        raise RuntimeError("\x1b[2J")

    monkeypatch.setattr(sync, "_record", fail)
    assert sync.try_to_sync() == "RuntimeError: \\u001b[2J"


def test_a_note_that_its_stage_removes_while_a_sync_looks_is_passed_over(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    trained(project)
    FOLDER.mkdir(parents=True)
    (FOLDER / "1-score-gone.json").symlink_to("removed")
    assert sync.record_what_is_new() == ""
    assert len(stage_runs(project)) == 1


def test_thousands_of_points_at_once_are_cheap(project: Path) -> None:
    def seconds(steps: int) -> float:
        root = SEED / str(steps)
        columns = {f"metric_{number}": [step + number / 8 for step in range(steps)] for number in range(20)}
        write_parquet(project / root / "metrics.parquet", pa.table({"step": list(range(1, steps + 1)), **columns}))
        write_json(project / root / "rollouts/manifest.json", {})
        write_parquet(project / root / "held_out.parquet", pa.Table.from_pylist([], schema=HELD_OUT))
        files = ("metrics.parquet", "rollouts/manifest.json", "held_out.parquet")
        outputs = {str(root / name): sha256_of(project / root / name) for name in files}
        finish(project, stage_record(key=f"{steps:064d}", params={"training": {"steps": steps}}), outputs)
        started = time.process_time()
        assert sync.sync() == 1
        return time.process_time() - started

    seconds(1)
    few, many = seconds(500), seconds(1000)
    assert many < 3 * few, "linear in their number"
