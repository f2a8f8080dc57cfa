"""MLflow's UI on loopback: one worker, no job executor.

Opened at the runs of the present experiment.
"""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import FrameType

from dagrpo.core.errors import UserError
from dagrpo.utils.addresses import free_port
from dagrpo.utils.console import waiting
from dagrpo.utils.yaml_text import read_yaml
from dagrpo_mlflow.store import artifact_location, open_client, require_answer, tracking_uri, without_user
from dagrpo_mlflow.sync import try_to_sync
from dagrpo_mlflow.views import VIEW, VIEW_TAG

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
    artifacts = artifact_location(uri, root)
    require_answer(uri)
    if artifacts is not None:
        _require_free(port)
    if trouble := try_to_sync():  # what MLflow holds is shown all the same
        print(f"Some results are not recorded in MLflow yet: {trouble}", file=sys.stderr)
    if artifacts is None:
        print(f"MLflow: {without_user(uri).rstrip('/')}/{_page(uri)}", flush=True)
        return
    page = _page(uri)
    signal.signal(signal.SIGTERM, _leave)
    log = root / LOG
    log.parent.mkdir(exist_ok=True)
    place = ("--host", HOST, "--port", str(port), "--default-artifact-root", artifacts)
    lean = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment = os.environ | lean | {"MLFLOW_BACKEND_STORE_URI": uri}  # every user can list a command line
    with log.open("wb") as output:
        command = (sys.executable, "-m", "mlflow", "ui", "--workers", "1", *place)
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        _wait(server, port)
        print(f"MLflow: http://{HOST}:{port}/{page}", flush=True)
        server.wait()
    except KeyboardInterrupt:
        print()
    finally:
        _stop(server)


def _page(uri: str) -> str:
    """Return the page of the runs of the experiment of params.yaml, or of the newest one; else the front page."""
    try:
        client = open_client(uri)
        experiment = client.get_experiment_by_name(str(read_yaml(PARAMS)["experiment"]["name"]))
        experiment = experiment or client.search_experiments(max_results=1, order_by=["last_update_time DESC"])[0]
    except Exception:  # noqa: BLE001  a params.yaml under repair or a server's refusal is no reason not to look at runs
        return ""
    view = f"&viewStateShareKey={VIEW}" if VIEW_TAG in experiment.tags else ""
    return f"#/experiments/{experiment.experiment_id}/{RUNS_VIEW}{view}"


def _require_free(port: int) -> None:
    try:
        free_port(HOST, port)
    except (OSError, OverflowError) as error:
        raise UserError(f"Port {port} on {HOST} cannot be used ({error}): choose another with --port.") from None


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
