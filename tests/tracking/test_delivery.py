"""A record may be delivered in any number of passes, interrupted anywhere, and is the same run afterwards."""

import os
import shutil
import signal
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
from tests.tracking.conftest import StartStage, parent_runs, runs_of, stage_record, stage_runs

from dagrpo.files import sha256_of, write_parquet, write_text
from dagrpo.tracking import delivery, runs
from dagrpo.tracking.delivery import LOCK, LOG, TROUBLE_FILE, follow, last_trouble, seconds_waiting, settle
from dagrpo.tracking.journal import FOLDER, journals, start_of
from dagrpo.tracking.recorder import Recorder
from dagrpo.tracking.runs import StageRun, stage_run
from dagrpo.tracking.store import complete, open_client, tracking_uri


class Crash(Exception):
    """Nothing in the package catches it, as nothing outlives a SIGKILL."""


class CrashingClient:
    """The real client, until its n-th call: that one does its work, but its caller does not live to see it."""

    def __init__(self, client: MlflowClient, calls: int) -> None:
        self._client = client
        self._calls_left = calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*arguments: Any, **options: Any) -> Any:
            found = method(*arguments, **options)
            self._calls_left -= 1
            if self._calls_left == 0:
                raise Crash
            return found

        return call


def log_one_of_everything(run: StageRun) -> Iterator[None]:
    """Every kind of event; stops after each."""
    data = Path("train.parquet")
    write_parquet(data, pa.table({"question": ["1+1", "2+2"]}))
    run.log_dataset(data, "gsm8k/train", sha256_of(data), "training")
    yield
    run.log_metrics({"loss": 2.0, "infinite": float("inf")}, step=1)
    yield
    run.log_table("completions", pa.table({"text": ["a", "b"], "ids": [[1], [2, 3]], "reward": [0.0, None]}))
    yield
    run.log_table("others", pa.table({"text": ["c"]}))
    yield
    run.log_artifact(data, "files")
    yield
    run.log_metrics({"loss": 1.0}, step=2)
    run.log_outputs({"results/demo/policy/manifest.json": "2" * 64})
    yield


def history(root: Path) -> dict[str, Any]:
    """Everything that MLflow holds about the runs of the experiment, but for ids that it draws itself."""
    client = open_client(tracking_uri(root))
    held: dict[str, Any] = {}
    found = sorted(runs_of(root), key=lambda run: (run.info.start_time, run.data.tags["role"]))
    names = {run.info.run_id: f"run {number}" for number, run in enumerate(found)}
    for run_id, run in zip(names, found, strict=True):
        held[f"{names[run_id]}: status"] = run.info.status, run.info.start_time, run.info.end_time, run.info.run_name
        held |= {f"{names[run_id]}: param {name}": value for name, value in run.data.params.items()}
        held |= {f"{names[run_id]}: tag {name}": names.get(value, value) for name, value in run.data.tags.items()}
        for metric in run.data.metrics:
            points = client.get_metric_history(run_id, metric)
            held[f"{names[run_id]}: {metric}"] = [(point.step, point.timestamp, repr(point.value)) for point in points]
        data = [(entry.dataset.to_dictionary(), entry.tags[0].value) for entry in run.inputs.dataset_inputs]
        held[f"{names[run_id]}: data"] = data
        files = root / "mlartifacts" / run_id / "artifacts"
        paths = [path for path in sorted(files.rglob("*")) if path.is_file()]
        held |= {f"{names[run_id]}: file {path.relative_to(files)}": path.read_bytes() for path in paths}
    return held


@pytest.fixture
def recorded(project: Path) -> Path:
    """A project with one record of everything, delivered nowhere yet."""
    with stage_run(stage_record()) as run:
        for _ in log_one_of_everything(run):
            pass
    return project


def copy_of(project: Path, name: str) -> Path:
    """The same project elsewhere, with a database of its own."""
    copy = project / name
    copy.mkdir()
    shutil.copytree(project / ".state", copy / ".state")
    shutil.copy(project / "mlflow.db", copy)
    for events in (copy / FOLDER).glob("*/events.jsonl"):
        events.write_text(events.read_text().replace(str(project.resolve()), str(copy.resolve())))
    return copy


def deliver_and_crash(project: Path, calls: int) -> bool:
    """True when the delivery needed more calls of the client than that, and so did not survive."""
    (folder,) = journals(project)
    client = CrashingClient(open_client(start_of(folder)["uri"]), calls)
    try:
        Recorder(folder, client).advance(superseded=False)
    except Crash:
        return True
    return False


def test_a_record_delivered_twice_is_the_same_run(recorded: Path) -> None:
    kept = copy_of(recorded, "kept")
    assert settle(recorded)
    once = history(recorded)
    assert once["run 1: file completions.json"] == (
        b'{"columns":["text","ids","reward"],"data":[["a",[1],0.0],["b",[2,3],null]]}'
    )
    shutil.rmtree(recorded / ".state")
    shutil.move(kept / ".state", recorded)
    for events in (recorded / FOLDER).glob("*/events.jsonl"):
        events.write_text(events.read_text().replace(str(kept.resolve()), str(recorded.resolve())))
    assert settle(recorded)
    assert history(recorded) == once


def test_a_delivery_that_dies_after_any_call_is_completed_by_the_next(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = copy_of(recorded, "whole")
    assert settle(whole)
    monkeypatch.chdir(whole)
    expected = history(whole)
    for calls in range(1, 100):
        project = copy_of(recorded, f"crashes_after_{calls}")
        crashed = deliver_and_crash(project, calls)
        assert settle(project)
        monkeypatch.chdir(project)
        assert history(project) == expected, f"after {calls} calls"
        if not crashed:
            break
    assert calls > 15


def test_a_record_delivered_piece_by_piece_is_the_same_run(project: Path) -> None:
    with stage_run(stage_record()) as run:
        whole = copy_of(project, "whole")
        for _ in log_one_of_everything(run):
            assert settle(project)
            assert stage_runs(project)[0].info.status == "RUNNING"
    (folder,) = journals(project)
    target = whole / FOLDER / folder.name
    shutil.rmtree(target)
    shutil.copytree(folder, target)
    (target / "progress.json").unlink()
    events = target / "events.jsonl"
    events.write_text(events.read_text().replace(str(project.resolve()), str(whole.resolve())))
    assert settle(project)
    assert settle(whole)
    assert history(project) == history(whole)


def test_a_resumed_run_holds_the_curve_from_its_first_step(project: Path) -> None:
    with pytest.raises(KeyboardInterrupt), stage_run(stage_record()) as run:
        for step in range(1, 4):
            run.log_metrics({"reward": step / 10, "seconds": 1.0}, step)
        raise KeyboardInterrupt
    with stage_run(stage_record()) as run:
        for step in range(1, 4):  # told again, without timings
            run.log_metrics({"reward": step / 10}, step)
        for step in range(4, 6):
            run.log_metrics({"reward": step / 10, "seconds": 1.0}, step)
    assert settle(project)
    client = open_client(tracking_uri(project))
    _, resumed = stage_runs(project)
    assert resumed.data.metrics == {}, "nothing is stored twice"
    parent = resumed.data.tags["mlflow.parentRunId"]
    rewards = client.get_metric_history(parent, "reward")
    assert [(point.step, point.value) for point in rewards] == [(step, step / 10) for step in range(1, 6)]
    assert [point.step for point in client.get_metric_history(parent, "seconds")] == [1, 2, 3, 4, 5]


def test_thousands_of_points_at_once_are_cheap(project: Path) -> None:
    started = time.process_time()
    with stage_run(stage_record()) as run:
        for step in range(500):
            run.log_metrics({f"metric_{number}": step + number / 8 for number in range(20)}, step)
    journalled = time.process_time() - started
    started = time.process_time()
    assert settle(project)
    delivered = time.process_time() - started
    points = open_client(tracking_uri(project)).get_metric_history(parent_runs(project)["0"].info.run_id, "metric_19")
    assert [point.value for point in points] == [step + 19 / 8 for step in range(500)]
    print(f"10,000 points: {journalled:.2f} s to write, {delivered:.2f} s to deliver")
    assert journalled < 2.0
    assert delivered < 30.0


def test_while_another_process_delivers_one_waits(project: Path) -> None:
    with stage_run(stage_record()):
        pass
    with FileLock(project / FOLDER / LOCK):
        assert not settle(project, timeout_s=0.1)
    assert settle(project)


def test_nothing_to_deliver_takes_no_import_of_mlflow(fresh: Path) -> None:
    code = "import sys; from pathlib import Path; from dagrpo.tracking.delivery import settle; "
    code += "assert settle(Path.cwd()); assert 'mlflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_how_long_a_record_waits_counts_from_the_end_of_its_stage(project: Path) -> None:
    with stage_run(stage_record()) as run:
        run.log_metrics({"loss": 1.0})
        assert seconds_waiting(project) == 0.0
    (folder,) = journals(project)
    an_hour_ago = time.time() - 3600
    os.utime(folder / "events.jsonl", (an_hour_ago, an_hour_ago))
    assert 3600 <= seconds_waiting(project) < 3660
    assert settle(project)
    assert seconds_waiting(project) == 0.0


def test_a_stage_that_works_long_is_seen_running_with_the_load_of_its_machine(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    monkeypatch.setattr(runs, "SAMPLING_SECONDS", 0.05)
    with stage_run(stage_record()) as run:
        run.log_metrics({"loss": 0.5}, step=1)
        give_up = time.monotonic() + 60
        while not (runs_of(project) and all(run.data.metrics for run in runs_of(project))):
            assert time.monotonic() < give_up
            time.sleep(0.2)
        (running,) = stage_runs(project)
        assert running.info.status == "RUNNING"
        assert parent_runs(project)["0"].data.metrics["loss"] == 0.5
    while journals(project):  # the process that follows delivers the end, too
        assert time.monotonic() < give_up
        time.sleep(0.2)
    (ended,) = stage_runs(project)
    assert ended.info.status == "FINISHED"
    assert 0 < ended.data.metrics["system/system_memory_usage_percentage"] <= 100
    assert {"system/cpu_utilization_percentage", "system/disk_usage_megabytes"} <= set(ended.data.metrics)


def test_following_ends_with_a_stage_that_was_killed(project: Path, start_stage: StartStage) -> None:
    process = start_stage(stage_record(), "time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    (folder,) = journals(project)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    follow(folder, pause_s=0.0)
    assert stage_runs(project)[0].info.status == "KILLED"
    assert journals(project) == []


def test_following_ends_when_nothing_can_be_delivered(project: Path) -> None:
    with stage_run(stage_record()):
        pass
    (project / "mlflow.db").write_bytes(b"no database at all" * 100)
    (folder,) = journals(project)
    follow(folder, pause_s=0.0)
    assert journals(project) == [folder]
    assert "file is not a database" in last_trouble(project)


def test_passes_that_fail_become_rarer(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, passes = [], []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 20:
            raise Crash

    def fail(root: Path, timeout_s: float) -> None:
        passes.append(len(pauses))
        write_text(root / FOLDER / TROUBLE_FILE, "the server does not answer")

    with stage_run(stage_record()), monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(time, "sleep", pause)
        patched.setattr(delivery, "_pass", fail)
        follow(journals(project)[0])
    assert passes == [0, 2, 6, 14]


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
    ("status", "told"),
    [
        (401, "refuses the credentials (401): set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        (403, "refuses the credentials (403): set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        (503, "does not answer (too many 503 error responses): start it, or correct MLFLOW_TRACKING_URI"),
    ],
)
def test_a_server_that_refuses_costs_no_result_and_is_told_in_a_sentence(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, status: int, told: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    with _refusing(status) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://alice:s3cret@{address}")
        for stage in ("train", "export"):
            with stage_run(stage_record(stage)):
                pass
        assert not settle(fresh)
        assert last_trouble(fresh).startswith(f"the server at http://{address} {told}")
        assert "no result is lost, and the next run or `dagrpo ui` delivers what waits" in last_trouble(fresh)
        assert len(journals(fresh)) == 2
        told_of = [folder.name in (fresh / FOLDER / LOG).read_text() for folder in journals(fresh)]
        assert told_of == [True, False], "the server is asked once"


def test_what_waited_for_credentials_is_delivered_with_them(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://alice:s3cret@mlflow.lab")
    assert complete("http://mlflow.lab", fresh) == "http://alice:s3cret@mlflow.lab"
    assert complete("http://other.lab", fresh) == "http://other.lab"


def test_a_password_in_the_address_is_neither_journalled_nor_shown(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = "http://alice:s3cret@127.0.0.1:9"  # where nobody answers
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with stage_run(stage_record()):
        pass
    (folder,) = journals(fresh)
    assert start_of(folder)["uri"] == "http://alice@127.0.0.1:9"
    assert not settle(fresh)
    assert last_trouble(fresh).startswith("the server at http://127.0.0.1:9 does not answer (")
    written = [path.read_text() for path in (fresh / FOLDER).rglob("*") if path.is_file()]
    assert not any("s3cret" in text for text in written)
