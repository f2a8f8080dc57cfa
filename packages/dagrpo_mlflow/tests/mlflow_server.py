"""MLflow servers to start and kill: SQLite's, and that of docs/cluster.md."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.waiting import wait_until

from dagrpo.engine.sglang.server import free_port

SECONDS = 600  # for anything, on a busy machine
S3 = Path(__file__).parents[3] / "tests/pipeline/snakemake/store_server.py"
POSTGRESQL = ("initdb", "pg_ctl", "postgres")
PASSWORD = "correct horse battery staple"
USERS = """\
[mlflow]
default_permission = READ
database_uri = {users}
admin_username = admin
admin_password = {password}
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An MLflow server, which may be started more than once."""

    folder: Path  # of its log
    stored: tuple[str, ...]  # arguments
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)  # of its own
    credentials: Mapping[str, str] = field(default_factory=dict)  # variables of those who use it
    port: int = field(default_factory=lambda: free_port(None))

    @property
    def uri(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it. At the end it is killed with its workers, as if the power went."""
        own = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **self.environment}
        place = ("--host", "127.0.0.1", "--port", str(self.port), "--workers", "1")
        command = (self.python, "-m", "mlflow", "server", *place, *self.stored)
        with (self.folder / "server.log").open("a") as log:
            process = subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until(self._answers, SECONDS)
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=5):
            return True
        return False


@contextmanager
def on_sqlite(folder: Path) -> Iterator[Server]:
    """Yield a server whose records are in a folder."""
    stored = ("--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "files"))
    yield Server(folder=folder, stored=stored)


@contextmanager
def of_the_docs(folder: Path) -> Iterator[Server]:
    """Yield the server of docs/cluster.md; skip the test where PostgreSQL or what it takes is not installed."""
    python = os.environ.get("DAGRPO_REMOTES_PYTHON", "")
    if not python:
        pytest.skip("DAGRPO_REMOTES_PYTHON names no Python with requirements/remotes.lock: `make nightly` makes one")
    if missing := [name for name in POSTGRESQL if not shutil.which(name)]:
        pytest.skip(f"{', '.join(missing)} not found: apt-get install postgresql, and put its programs on PATH")
    with _postgresql() as database, _s3(python, folder) as s3:
        users = folder / "users.ini"
        users.write_text(USERS.format(users=f"{database}/users", password=PASSWORD))
        yield Server(
            folder=folder,
            stored=(
                *("--app-name", "basic-auth", "--backend-store-uri", f"{database}/mlflow"),
                *("--artifacts-destination", "s3://bucket/mlflow"),
            ),
            python=python,
            environment=s3
            | {"MLFLOW_AUTH_CONFIG_PATH": str(users), "MLFLOW_FLASK_SERVER_SECRET_KEY": "always the same"},
            credentials={"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": PASSWORD},
        )


@contextmanager
def _postgresql() -> Iterator[str]:
    """Run PostgreSQL with two databases that take a password; yield the address that these share."""
    folder, port = Path(tempfile.mkdtemp(prefix="dagrpo-postgresql-")), free_port(None)
    if os.geteuid() == 0:  # which PostgreSQL refuses to be
        shutil.chown(folder, "postgres", "postgres")
    (folder / "password").write_text("s3cret")
    (folder / "password").chmod(0o644)
    place = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder}"
    data = ("--pgdata", str(folder / "data"))
    try:
        as_postgres(
            *("initdb", *data, "--username", "mlflow", "--pwfile", str(folder / "password"), "--auth", "scram-sha-256")
        )
        as_postgres("pg_ctl", *data, "--wait", "--log", str(folder / "log"), "--options", place, "start")
        for name in ("mlflow", "users"):
            as_postgres(
                "psql", f"postgresql://mlflow:s3cret@127.0.0.1:{port}/postgres", "-c", f"CREATE DATABASE {name}"
            )
        yield f"postgresql+psycopg://mlflow:s3cret@127.0.0.1:{port}"
        as_postgres("pg_ctl", *data, "--mode", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def as_postgres(*command: str) -> None:
    """Run a program of PostgreSQL, as the user postgres where this one is root."""
    user = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups") if os.geteuid() == 0 else ()
    subprocess.run([*user, *command], check=True, cwd="/", stdout=subprocess.DEVNULL)


@contextmanager
def _s3(python: str, folder: Path) -> Iterator[dict[str, str]]:
    """Run moto's S3; yield the variables with which a program finds it."""
    keys = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    command = [python, str(S3), "s3"]
    with subprocess.Popen(command, cwd=folder, env=os.environ | keys, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            port = next(line.split()[1] for line in server.stdout if line.startswith("port "))
            yield keys | {"MLFLOW_S3_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        finally:
            server.kill()
