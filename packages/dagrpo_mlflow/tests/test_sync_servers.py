"""A store that is away, refuses or is damaged costs no result, and its message reaches the terminal escaped."""

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packages.dagrpo_mlflow.tests.conftest import stage_runs, trained

from dagrpo_mlflow import sync


@contextmanager
def _refusing(status: int) -> Iterator[str]:
    """Yield the address of a server that answers everything with one status."""

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
    ("status", "words"),
    [
        (401, "401 != 200"),
        (503, "too many 503 error responses"),
    ],
)
def test_a_server_that_refuses_costs_no_result_and_is_named_in_a_sentence(
    fresh: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, status: int, words: str
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    trained(fresh)
    with _refusing(status) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://alice:s3cret@{address}")
        trouble = sync.record_what_is_new()
    assert trouble.startswith(f"http://{address} cannot record runs: ")
    assert words in trouble
    assert "No result is lost: the next run, `dagrpo ui`" in trouble
    assert not any(b"s3cret" in path.read_bytes() for path in fresh.rglob("*") if path.is_file())
    assert "s3cret" not in trouble
    shutil.copy(empty_database, fresh / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert sync.record_what_is_new() == ""
    assert len(stage_runs(fresh)) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "[Errno 111] Connection refused"),
        (b"SSH-2.0 \x1b]0;owned\x07\r\n", "SSH-2.0 \\u001b]0;owned\\u0007"),
    ],
)
def test_what_is_no_mlflow_server_is_named_without_its_password_and_escaped(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | None, why: str
) -> None:
    trained(fresh)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer or b"")

        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://alice:s3cret@{address}")
        if answer is None:
            server.close()
        else:
            threading.Thread(target=reply, daemon=True).start()
        trouble = sync.try_to_sync()
    assert trouble.startswith(f"The MLflow server at http://{address} does not answer (")
    assert why in trouble
    assert "s3cret" not in trouble


def test_a_damaged_database_costs_no_result(fresh: Path) -> None:
    trained(fresh)
    (fresh / "mlflow.db").write_bytes(b"no database at all" * 100)
    assert (
        "mlflow.db cannot record runs: file is not a database: correct its permissions, or move it away"
        in sync.try_to_sync()
    )
