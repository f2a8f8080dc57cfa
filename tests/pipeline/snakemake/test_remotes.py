"""DVC with requirements/remotes.lock: remotes on S3, Google Cloud Storage and SSH, whose servers are on this machine."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pipeline.snakemake import clones

pytestmark = [pytest.mark.dag, pytest.mark.nightly]
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "somebody",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # asks by gRPC, which the server does not speak
}
URLS = {"s3": "s3://bucket/runs", "gs": "gs://bucket/runs", "ssh": "ssh://me@127.0.0.1:{port}{folder}/runs"}
SETTINGS = {
    "s3": {"endpointurl": "http://127.0.0.1:{port}"},
    "gs": {"endpointurl": "http://127.0.0.1:{port}", "allow_anonymous_login": "true"},
    "ssh": {"keyfile": "{folder}/key"},
}


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the Python of the environment that has DVC's remotes and their servers."""
    path = os.environ.get("DAGRPO_REMOTES_PYTHON", "")
    if not path:
        pytest.skip("DAGRPO_REMOTES_PYTHON names no Python with requirements/remotes.lock: `make nightly` makes one")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return path


@pytest.fixture(params=URLS)
def remote(request: pytest.FixtureRequest, python: str, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield URL and settings of a remote of one kind."""
    command = [python, str(Path(__file__).with_name("store_server.py")), request.param]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = next(line.split()[1] for line in server.stdout if line.startswith("port "))
        place = {"port": port, "folder": str(tmp_path)}
        yield (
            URLS[request.param].format(**place),
            {name: text.format(**place) for name, text in SETTINGS[request.param].items()},
        )
        server.kill()


def test_a_colleague_pulls_what_was_pushed_and_has_nothing_to_run(
    remote: tuple[str, dict[str, str]], python: str, run_by_snakemake: Path, tmp_path: Path
) -> None:
    folder, colleague = clones.copied(run_by_snakemake, tmp_path / "folder"), tmp_path / "colleague"
    url, settings = remote
    dvc = (python, "-m", "dvc")
    clones.run(folder, *dvc, "remote", "add", "-d", "store", url)
    for name, value in settings.items():
        clones.run(folder, *dvc, "remote", "modify", "store", name, value)
    clones.run(folder, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-qam", "run")
    clones.run(folder, *dvc, "push")
    clones.run(folder, "git", "clone", "-q", str(folder), str(colleague))
    clones.run(colleague, *dvc, "pull")
    assert clones.outputs(colleague) == clones.outputs(folder)
    assert "Nothing to be done" in clones.run(colleague, "snakemake", "-n", "target")
