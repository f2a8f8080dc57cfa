"""A server that is away or refuses costs no result, and its message reaches the terminal escaped."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.tracking.conftest import (
    stage_runs,
    trained,
)

from dagrpo.core.errors import UserError
from dagrpo.tracking import sync


@contextmanager
def _refusing(status: int, after: float = 0.0) -> Iterator[str]:
    """The address of a server that answers everything with one status, `after` so many seconds."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(after)
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


@pytest.mark.parametrize(("status", "after"), [(401, 0), (403, 0), (401, 3.5)], ids=["401", "403", "late"])
def test_a_server_that_refuses_the_credentials_is_named_in_five_seconds_before_any_work(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, status: int, after: float
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME", raising=False)
    with _refusing(status, after) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://alice:s3cret@{address}")
        began = time.monotonic()
        with pytest.raises(UserError) as refusal:
            sync.require_recordable()
    assert time.monotonic() - began < 5
    assert str(refusal.value).startswith(
        f"http://{address} cannot record runs: it refuses the credentials ({status}): set MLFLOW_TRACKING_USERNAME"
    )
    assert str(refusal.value).endswith("or set DAGRPO_TRACKING=off to run without a record.")


def test_a_server_that_is_away_busy_or_silent_stops_no_run_and_the_credentials_do_not_pass_for_good(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")

    def require_told(address: str, why: str) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://alice:s3cret@{address}")
        began = time.monotonic()
        sync.require_recordable()
        assert time.monotonic() - began < 5
        told = " ".join("".join(capfd.readouterr()).split())
        assert f"Whether the MLflow server at http://{address} takes the credentials could not be asked ({why})" in told

    with _refusing(503) as address:
        require_told(address, "it answers 503")
    require_told(address, "[Errno 111] Connection refused")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        require_told(f"127.0.0.1:{silent.getsockname()[1]}", "timed out")
    with _refusing(200) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{address}")
        sync.require_recordable()
        assert "".join(capfd.readouterr()) == ""
    monkeypatch.setenv("DAGRPO_TRACKING", "later")
    with _refusing(401) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{address}")
        sync.require_recordable()


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
        f"The server at {address} is not an MLflow server (BadStatusLine: SSH-2.0 \\u001b]0;owned\\u0007)"
    )


def test_an_error_that_nobody_expected_is_told_without_control_characters(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(uri: str, artifacts: str | None, *, all_folders: bool) -> int:
        raise RuntimeError("\x1b[2J")

    monkeypatch.setattr(sync, "_record", fail)
    assert sync.try_to_sync() == "RuntimeError: \\u001b[2J"
