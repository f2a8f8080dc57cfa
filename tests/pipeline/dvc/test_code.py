"""A folder of links per stage is DVC's one dependency for the stage's code, and true without a command of ours."""

import os
import subprocess
from pathlib import Path

import pytest
from dvc.repo import Repo

from dagrpo.config.places import ROOT, SCRIPT
from dagrpo.config.schema import Params, parse, read_params
from dagrpo.pipeline.dvc import code
from dagrpo.pipeline.dvc.code import FOLDER, folder_of, link_name, links_are_current, write_links
from dagrpo.pipeline.job_files import code_files
from dagrpo.pipeline.stages import all_stages


def test_the_committed_links_lead_to_the_code_that_params_yaml_selects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    params = read_params(ROOT / "params.yaml")
    assert links_are_current(params), "run `dagrpo generate`"
    for stage in all_stages().values():
        behind = {path.resolve() for path in Path(folder_of(stage)).iterdir()}
        assert behind == {(ROOT / file).resolve() for file in (SCRIPT, *code_files(params, stage))}


def test_other_parameters_give_other_links_and_the_former_ones_the_former(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    link = FOLDER / "train" / link_name("src/dagrpo/rewards/verifiers/countdown.py")
    write_links(Params())
    assert not link.is_symlink()
    countdown = parse({"reward": {"verifier": "countdown"}})
    assert not links_are_current(countdown)
    write_links(countdown)
    assert os.readlink(link) == str(ROOT / "src/dagrpo/rewards/verifiers/countdown.py")
    write_links(Params())
    assert links_are_current(Params())
    assert not link.is_symlink()


def test_a_folder_of_a_stage_that_is_gone_and_a_file_in_the_place_of_a_link_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_links(Params())
    (FOLDER / "former").mkdir()
    (FOLDER / "former/src+x.py").symlink_to("../../../src/x.py")
    own = FOLDER / "model" / link_name(SCRIPT)
    own.unlink()
    own.write_text("a copy")
    (FOLDER / "model/__pycache__").mkdir()  # of `python -m compileall .`
    assert not links_are_current(Params())
    write_links(Params())
    assert links_are_current(Params())
    assert not (FOLDER / "former").exists()


def test_code_outside_the_project_is_linked_by_its_whole_path(tmp_path: Path) -> None:
    assert code._links(["/lab/losses.py"]) == {"+lab+losses.py": "/lab/losses.py"}


@pytest.mark.nightly
def test_dvc_finds_just_the_stages_whose_code_was_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a new clone and after a checkout of another commit, in which no command of ours has run."""
    monkeypatch.chdir(tmp_path)
    stages = {"one": ("a.py", "shared.py"), "two": ("shared.py",), "three": ("b.py",)}
    for name in ("a.py", "b.py", "shared.py"):
        _write(Path("src", name), "1")
    for stage, files in stages.items():
        for name in files:
            link = FOLDER / stage / link_name(f"src/{name}")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"../../../src/{name}")
    entries = "".join(f"  {name}: {{cmd: 'true', deps: [{FOLDER / name}]}}\n" for name in stages)
    _write(Path("dvc.yaml"), f"stages:\n{entries}")
    _run("git", "init", "-q")
    _run("dvc", "init", "-q")
    _run("dvc", "repro", "-q")
    _commit("one")
    assert _changed() == []
    _write(Path("src/shared.py"), "2")
    assert _changed() == ["one", "two"]
    _run("git", "checkout", "-q", "src")
    assert _changed() == []
    _write(Path("src/b.py"), "2")
    _commit("two")
    assert _changed() == ["three"]
    _run("git", "clone", "-q", ".", "clone")
    monkeypatch.chdir(tmp_path / "clone")
    assert _changed() == ["three"]
    _run("git", "checkout", "-q", "HEAD~1")
    assert _changed() == []


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _commit(message: str) -> None:
    _run("git", "add", "-A")
    _run("git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-q", "-m", message)


def _changed() -> list[str]:
    with Repo(".") as repo:
        return sorted(repo.status())
