"""`make setup` makes the environment again where it has to, and only there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _make(*arguments: str, folder: Path = ROOT) -> str:
    """What make says; not as the child of another make, which would say more."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with this Makefile, whose environment is set up and holds dagrpo alone."""
    folder = tmp_path / "project"
    for name in (
        "requirements/cpu.lock",
        "requirements/gpu.lock",
        "requirements/installer.lock",
        "pyproject.toml",
        "src/dagrpo/__init__.py",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "packages").mkdir()
    shutil.copyfile(ROOT / "Makefile", folder / "Makefile")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], cwd=folder, check=True)
    (packages,) = folder.glob(".venv/lib/python*/site-packages")
    (packages / "dagrpo.pth").write_text(str(folder / "src"))
    (folder / ".venv/.installed").touch()
    (folder / ".environment").write_text("requirements/gpu.lock")
    assert "Nothing to be done" in _make("-n", "setup", folder=folder)
    return folder


def test_the_environment_of_a_moved_folder_is_made_anew_from_the_same_lock(project: Path) -> None:
    """Its programs name the former folder in their first lines: 127, or another folder's code."""
    moved = project.with_name("moved")
    shutil.copytree(project, moved, symlinks=True)
    planned = _make("-n", "setup", folder=moved)
    assert planned.index("rm -rf .venv\n") < planned.index("create_environment.py .venv")
    assert "-r requirements/gpu.lock" in planned
    assert "create_environment.py .venv" in _make("-n", "run", folder=moved)


def test_an_environment_whose_python_is_gone_is_made_anew_and_a_mistake_in_the_code_removes_none(project: Path) -> None:
    (project / "src/dagrpo/__init__.py").write_text("def\n")
    assert "rm -rf" not in _make("-n", "setup", folder=project)
    for python in project.glob(".venv/bin/python*"):
        python.unlink()
        python.symlink_to("/nowhere/python3.11")
    assert "rm -rf .venv\n" in _make("-n", "setup", folder=project)


@pytest.mark.parametrize(("tag", "from_the_index"), [(f"cp3{sys.version_info.minor}", False), ("cp310", True)])
def test_a_folder_of_wheels_counts_if_it_has_torch_for_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str, from_the_index: bool
) -> None:
    (tmp_path / f"torch-2.13.0+cpu-{tag}-{tag}-manylinux_2_28_x86_64.whl").touch()
    monkeypatch.setenv("UV_FIND_LINKS", f"/other,{tmp_path}")
    planned = _make("-n", "-B", "setup")
    assert f'UV_FIND_LINKS="/other,{tmp_path}" .venv/bin/uv' in planned
    assert ("--torch-backend cpu" in planned) == from_the_index
    assert ("has torch for another Python" in planned) == from_the_index
