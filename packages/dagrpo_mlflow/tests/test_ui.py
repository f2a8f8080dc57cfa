"""The MLflow UI on loopback."""

import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from packages.dagrpo_mlflow.tests.conftest import execution, stage_record, write
from tests.listening import beyond_loopback, open_sockets

from dagrpo.utils.files import write_json
from dagrpo_mlflow.attempt import FOLDER
from dagrpo_mlflow.ui import serve


@pytest.mark.nightly
def test_the_address_of_the_experiments_runs_is_printed_once_it_answers_though_nothing_can_be_added(
    project: Path,
) -> None:
    write(project, execution(stage_record()))
    write_json(FOLDER / "1-of-another-version.json", {})  # a sync ends with a KeyError
    (project / "params.yaml").write_text("experiment: {name: demo}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"from dagrpo_mlflow.ui import serve; serve({port})"
    server = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        line = next(line for line in server.stdout if line.startswith("MLflow: "))
        assert line.strip() == f"MLflow: http://127.0.0.1:{port}/#/experiments/1/runs?workflowType=machine_learning"
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/get?experiment_id=1"
        ) as answer:
            assert json.load(answer)["experiment"]["name"] == "demo"
        assert any(f"127.0.0.1 {port} " in one for one in open_sockets(server.pid))
        assert beyond_loopback(server.pid) == []
    finally:
        server.terminate()
        server.communicate()
    assert server.returncode == 143


def test_a_busy_port_is_one_sentence(project: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=rf"Port {port} on 127\.0\.0\.1 cannot be used .*: choose another"):
            serve(port)
