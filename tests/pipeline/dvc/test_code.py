"""Packages and the user's own files are DVC's dependencies for a stage's code, true without a command of ours."""

import os
import subprocess
from pathlib import Path

import pytest
from dvc.repo import Repo

from dagrpo.config.places import PACKAGE, ROOT, SCRIPT
from dagrpo.config.schema import Params, read_params
from dagrpo.pipeline.dvc import code
from dagrpo.pipeline.dvc.code import FOLDER, code_of_stage, links_are_current, write_links
from dagrpo.pipeline.stages import all_stages

LINK = FOLDER / "src+dagrpo"


def test_in_a_clone_the_package_itself_is_the_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    params = read_params(ROOT / "params.yaml")
    assert links_are_current(params)
    assert all({"src/dagrpo", SCRIPT} <= set(code_of_stage(params, stage)) for stage in all_stages().values())
    assert code._place(code._package("packages/one/src/one/deep/rules.py")) == (Path("packages/one/src/one"), None)
    assert code._place(code._package("examples/own/task.py")) == (Path("examples/own/task.py"), None)


def test_code_outside_of_the_folder_or_in_its_environment_is_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not links_are_current(Params())
    LINK.parent.mkdir(parents=True)
    LINK.symlink_to("/gone")  # of another environment
    write_links(Params())
    assert links_are_current(Params())
    assert os.readlink(LINK) == str(PACKAGE)
    copied = Path("packages/dagrpo_sglang_cpu/src/dagrpo_sglang_cpu")  # as `make setup` installs it
    assert code._place(str(copied))[1] == FOLDER / str(copied).replace("/", "+")
    copied.mkdir(parents=True)
    assert code._place(str(copied)) == (copied, None)
    assert code._place("/lab/losses.py") == (Path("/lab/losses.py"), FOLDER / "+lab+losses.py")
    assert code._place(".venv/lib/plugin.py") == (tmp_path / ".venv/lib/plugin.py", FOLDER / ".venv+lib+plugin.py")


@pytest.mark.parametrize("linked", [False, True])
def test_dvc_sees_an_edit_of_a_package(linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through the link of a study whose environment lies inside of it, which .dvcignore has."""
    monkeypatch.chdir(tmp_path)
    source = Path(".venv/lab" if linked else "src/lab", "inner/a.py")
    source.parent.mkdir(parents=True)
    source.write_text("1")
    if linked:
        LINK.parent.mkdir(parents=True)
        LINK.symlink_to(tmp_path / ".venv/lab")
    Path(".dvcignore").write_text(".venv\n__pycache__\n")
    Path("dvc.yaml").write_text(f"stages:\n  one: {{cmd: 'true', deps: [{LINK if linked else 'src/lab'}]}}\n")
    for command in (("git", "init", "-q"), ("dvc", "init", "-q"), ("dvc", "repro", "-q")):
        subprocess.run(command, check=True, capture_output=True)
    assert not _changed()
    (source.parent / "__pycache__").mkdir()
    (source.parent / "__pycache__/a.pyc").write_text("1")
    assert not _changed()
    source.write_text("22")
    assert _changed()


def _changed() -> dict[str, object]:
    with Repo(".") as repo:
        return dict(repo.status())
