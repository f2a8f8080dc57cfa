"""The private parts of DVC are as dvc/private.py takes them to be. A failure here: read its new version."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from dagrpo.pipeline.dvc.private import keep_other_experiments

MEBIBYTE = 1 << 20
COMMIT = (
    "from pathlib import Path; from dagrpo.pipeline.dvc.recording import _record; "
    "print(_record([Path('made'), Path('small')]))"
)

DIES_WRITING = (
    "import os; import dvc.utils.serialize._yaml as serialized; "
    "serialized._dump = lambda data, stream: (stream.write('sch'), stream.flush(), os._exit(9)); "
)

NO_ROOM = (
    "import errno; import dvc.utils.serialize._yaml as serialized\n"
    "def full(data, stream): raise OSError(errno.ENOSPC, 'No space left on device')\n"
    "serialized._dump = full; "
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two stages that have run, one with an output of 2 MiB; nothing is recorded yet."""
    subprocess.run(["dvc", "init", "--no-scm", "-q"], cwd=tmp_path, check=True, timeout=120)
    stages = {name: {"cmd": "true", "outs": [name]} for name in ("made", "small")}
    YAML().dump({"stages": stages}, tmp_path / "dvc.yaml")
    (tmp_path / "made").mkdir()
    (tmp_path / "made/large").write_bytes(os.urandom(2 * MEBIBYTE))
    (tmp_path / "small").write_text("1")
    return tmp_path


def _commit(folder: Path, most_bytes: int) -> "subprocess.CompletedProcess[str]":
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))

    command = [sys.executable, "-c", COMMIT]
    return subprocess.run(command, cwd=folder, preexec_fn=limit, capture_output=True, text=True, timeout=120)


def test_an_output_that_the_cache_has_no_room_for_is_not_recorded_and_the_others_are(repository: Path) -> None:
    done = _commit(repository, MEBIBYTE)
    assert done.stdout.split() == ["False"]
    (told,) = done.stderr.strip().splitlines()
    assert told.startswith("Not recorded in DVC, the next run tries again: made: ")
    assert f"{repository}/.dvc/cache/files/md5: File too large: raise the limit" in told
    assert set(YAML().load(repository / "dvc.lock")["stages"]) == {"small"}


def test_a_process_that_is_killed_while_dvc_lock_is_written_leaves_it_as_it_was(repository: Path) -> None:
    _commit(repository, 1 << 30)
    before = (repository / "dvc.lock").read_bytes()
    (repository / "small").write_text("2")
    died = subprocess.run([sys.executable, "-c", DIES_WRITING + COMMIT], cwd=repository, check=False, timeout=120)
    assert died.returncode == 9
    assert (repository / "dvc.lock").read_bytes() == before


@pytest.mark.nightly
def test_with_room_again_all_of_it_is_recorded(repository: Path) -> None:
    _commit(repository, MEBIBYTE)
    done = _commit(repository, 1 << 30)
    assert (done.stdout.split(), done.stderr) == (["True"], "")
    assert set(YAML().load(repository / "dvc.lock")["stages"]) == {"made", "small"}
    status = subprocess.run(["dvc", "status"], cwd=repository, capture_output=True, text=True, timeout=120)
    assert "up to date" in status.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(("place", "kind"), [(".dvc/cache", "a file"), (".dvc/cache/files/md5", "link")])
def test_a_cache_that_is_no_folder_is_told_in_a_sentence(repository: Path, place: str, kind: str) -> None:
    path = repository / place
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch() if kind == "a file" else path.symlink_to("elsewhere")
    done = _commit(repository, 1 << 30)
    assert done.stdout.split() == ["False"]
    (told,) = done.stderr.strip().splitlines()
    assert told.startswith("Not recorded in DVC, the next run tries again: ")
    assert f"{repository}/.dvc/cache/files/md5 does not take what was made (" in told
    assert told.endswith("see that it is a folder that you can write to, then run again.")
    assert not (repository / "dvc.lock").exists()


@pytest.mark.nightly
def test_a_dvc_lock_that_cannot_be_written_is_told_in_a_sentence(repository: Path) -> None:
    done = subprocess.run([sys.executable, "-c", NO_ROOM + COMMIT], cwd=repository, capture_output=True, text=True)
    assert done.stdout.split() == ["False"]
    (told,) = done.stderr.strip().splitlines()
    assert told.startswith("Not recorded in DVC, the next run tries again: dvc.lock: No space left on device: ")


BY_NAME = """
stages:
  make:
    matrix:
      name: ["${name}"]
    cmd: mkdir -p results/${item.name} && echo ${item.name} > results/${item.name}/made
    outs:
    - results/${item.name}
"""


@pytest.mark.parametrize("kept", [True, False])
def test_a_checkout_leaves_the_outputs_of_other_experiments(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Repo.init(no_scm=True)
    Path("dvc.yaml").write_text(BY_NAME)
    for name in ("one", "two"):
        Path("params.yaml").write_text(f"name: {name}")
        with Repo(".") as repo:
            repo.reproduce()
        shutil.rmtree(f"results/{name}")
        if kept:
            keep_other_experiments()
        with Repo(".") as repo:
            repo.checkout()
    assert Path("results/two/made").exists()
    assert Path("results/one/made").exists() == kept, "if DVC does not remove them any more, the trigger can go"
