"""MLflow's UI on loopback: one worker, no job executor.

Opened at the runs of the present experiment.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

from dagrpo.core.errors import UserError
from dagrpo.tracking.store import is_initialised, open_client, require_answer
from dagrpo.tracking.store_address import artifact_location, tracking_uri, without_user
from dagrpo.tracking.sync import try_to_sync
from dagrpo.tracking.views import VIEW, VIEW_TAG
from dagrpo.utils.console import waiting
from dagrpo.utils.yaml_text import read_yaml

HOST = "127.0.0.1"
START_SECONDS = 120.0
STOP_SECONDS = 10.0
PARAMS = Path("params.yaml")
LOG = Path("logs/mlflow.log")
RUNS_VIEW = "runs?workflowType=machine_learning"  # the view with the learning curves


def serve(port: int) -> None:
    """Record new results, serve the UI until interrupted, and print the address to open once it answers.

    With MLFLOW_TRACKING_URI at a server, its own UI is the one to open. Raises UserError if the port is taken or the
    server does not start.
    """
    root = Path.cwd()
    uri = tracking_uri(root)
    require_answer(uri)
    is_server = artifact_location(uri, root) is None
    if not is_server:
        _require_free(port)
    if trouble := try_to_sync():  # what MLflow holds is shown all the same
        print(f"Some results are not recorded in MLflow yet: {trouble}", file=sys.stderr)
    if is_server:
        _announce(without_user(uri).rstrip("/"))
        return
    if not is_initialised(uri):
        open_client(uri)
    signal.signal(signal.SIGTERM, _leave)
    log = root / LOG
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as output:
        server = subprocess.Popen(_command(uri, root, port), env=_environment(uri), stdout=output, stderr=output)
    try:
        _wait(server, port)
        _announce(f"http://{HOST}:{port}")
        server.wait()
    except KeyboardInterrupt:
        print()
    finally:
        _stop(server)


def address(base: str, experiment: str | None) -> str:
    """Return the page of an experiment's runs; if it has none, that of the newest experiment; else the front page."""
    reply = _ask(base, f"get-by-name?experiment_name={quote(experiment)}") if experiment else None
    if reply is None:
        newest = _ask(base, "search?max_results=1&order_by=last_update_time%20DESC") or {}
        reply = {"experiment": experiments[0]} if (experiments := newest.get("experiments")) else None
    if not reply:
        return base
    views = {tag["key"] for tag in reply["experiment"].get("tags", [])}
    view = f"&viewStateShareKey={VIEW}" if VIEW_TAG in views else ""
    return f"{base}/#/experiments/{reply['experiment']['experiment_id']}/{RUNS_VIEW}{view}"


def _announce(base: str) -> None:
    print(f"MLflow: {address(base, _experiment_name())}", flush=True)


def _experiment_name() -> str | None:
    try:
        return str(read_yaml(PARAMS)["experiment"]["name"])
    except (UserError, KeyError, TypeError):  # a params.yaml under repair is no reason not to look at runs
        return None


def _ask(base: str, question: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(f"{base}/api/2.0/mlflow/experiments/{question}", timeout=START_SECONDS) as answer:
            reply: dict[str, Any] = json.load(answer)
            return reply
    except (OSError, HTTPException, ValueError):  # no such experiment, or the server is not MLflow
        return None


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise UserError(f"Port {port} on {HOST} cannot be used ({error}): choose another with --port.") from None


def _command(uri: str, root: Path, port: int) -> list[str]:
    artifacts = ["--default-artifact-root", str(artifact_location(uri, root))]
    return [sys.executable, "-m", "mlflow", "ui", "--workers", "1", "--host", HOST, "--port", str(port), *artifacts]


def _environment(uri: str) -> dict[str, str]:
    """Return the environment with the address, which may hold a password: every user can list a command line."""
    lean = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    return os.environ | lean | {"MLFLOW_BACKEND_STORE_URI": uri}


def _wait(server: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    with waiting(f"MLflow UI, log {LOG}") as tell:
        while time.monotonic() < deadline and server.poll() is None:
            try:
                with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=1):
                    return
            except OSError:
                tell("starting")
                time.sleep(0.2)
    raise UserError(f"The MLflow UI did not start on port {port}: see {LOG}.")


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def _stop(server: "subprocess.Popen[bytes]") -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
