"""No file that a run leaves, and no stream, has what opens the servers that it asks."""

import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.pipeline.conftest import run_by_snakemake
from tests.pipeline.snakemake import clones

__all__ = ["run_by_snakemake"]

SECRETS = {  # what is marked in the values of these
    "HF_TOKEN": "hf_m4rkedToken",
    "AWS_SECRET_ACCESS_KEY": "m4rked/Aws+Key",
    "HTTPS_PROXY": "http://me:m4rkedProxy@127.0.0.1:9",
    "MLFLOW_TRACKING_USERNAME": "alice",
    "MLFLOW_TRACKING_PASSWORD": "m4rkedPassword",
}
FAILS = """
    import logging, os
    quoted = " ".join(os.environ.get(name, "") for name in os.environ["QUOTED"].split(","))
    logging.getLogger("library").warning("asked %s", quoted)
    raise RuntimeError(f"nobody answers at http://alice:m4rkedAddress@lab:5000 {quoted}")
"""


@contextmanager
def _taken_port() -> Iterator[int]:
    """Bound, but not listening: a connection is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


def _failing(run: Path, folder: Path) -> Path:
    """Return a copy of a run whose stage prepare has to run again and quotes every secret in its log and in its error."""
    clones.copied(run, folder)
    prepare = folder / "src/dagrpo/pipeline/stages/prepare.py"
    start = prepare.read_text().index("    from dagrpo.utils.console import summary")
    prepare.write_text(prepare.read_text()[:start] + FAILS.lstrip("\n") + prepare.read_text()[start:])
    return folder


def _run(clone: Path, secrets: Mapping[str, str]) -> str:
    """What a workflow that fails has shown."""
    environment = clones.environment(clone) | dict(secrets) | {"QUOTED": ",".join(secrets)}
    target = f"data/{clones.NAME}/arithmetic/train.parquet"
    done = subprocess.run(
        ["snakemake", "--cores", "1", target], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "nobody answers at http://alice:***@lab:5000" in done.stdout + done.stderr
    return done.stdout + done.stderr


def _recorded(clone: Path, secrets: Mapping[str, str]) -> str:
    """What recording the runs in MLflow has shown."""
    environment = clones.environment(clone) | dict(secrets) | {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    done = subprocess.run(
        ["dagrpo", "tracking", "rebuild"], cwd=clone, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


def _holding(clone: Path) -> list[str]:
    """Files with a marked secret, but for those that are the test's own."""
    return [
        str(path.relative_to(clone))
        for path in clone.rglob("*")
        if path.is_file() and not path.is_symlink() and _is_of_the_run(clone, path) and b"m4rked" in path.read_bytes()
    ]


def _is_of_the_run(clone: Path, path: Path) -> bool:
    return path.relative_to(clone).parts[0] not in {".git", "src", "tests"}


@pytest.mark.dag
def test_no_secret_is_in_a_file_or_a_stream_of_a_run_that_fails(run_by_snakemake: Path, tmp_path: Path) -> None:
    clone = _failing(run_by_snakemake, tmp_path / "clone")
    with _taken_port() as port:
        shown = _run(clone, SECRETS | {"MLFLOW_TRACKING_URI": f"http://alice:m4rkedTracking@127.0.0.1:{port}"})
    assert len(list((clone / ".state/executions").glob("*.json"))) == 1, "of prepare"
    assert [line for line in shown.splitlines() if "m4rked" in line] == []
    assert _holding(clone) == []


@pytest.mark.dag
@pytest.mark.nightly
def test_no_secret_is_in_the_database_of_runs_that_fail(run_by_snakemake: Path, tmp_path: Path) -> None:
    clone = _failing(run_by_snakemake, tmp_path / "clone")
    shown = _run(clone, SECRETS) + _recorded(clone, SECRETS)
    assert (clone / "mlflow.db").stat().st_size > 0
    assert [line for line in shown.splitlines() if "m4rked" in line] == []
    assert _holding(clone) == []
