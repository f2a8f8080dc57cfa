"""The environment is what a lock says, holds one CUDA for a GPU, and is made again by make setup only where it has to be."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

from dagrpo.config.places import ROOT
from dagrpo.engine.sglang.toolkit import CUDA
from dagrpo_doctor import gpus


def _pins(lock: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / lock).read_text().splitlines()
    return {_plain(name): pin.split()[0] for name, _, pin in (line.partition("==") for line in lines if "==" in line)}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower().strip()


@pytest.mark.parametrize("project", [ROOT, *sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))])
def test_every_file_that_is_read_at_run_time_is_in_the_wheel(project: Path) -> None:
    declared = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["setuptools"].get("package-data", {})
    shipped = {
        file for name, patterns in declared.items() for each in patterns for file in (project / "src" / name).glob(each)
    }
    packages = (folder for folder in (project / "src").glob("dagrpo*") if not folder.suffix)  # .egg-info is not one
    files = {file for folder in packages for file in folder.rglob("*.*")}
    assert {file for file in files if file.suffix not in (".py", ".pyc") and file.is_file()} <= shipped


@pytest.mark.parametrize("lock", ["cpu.lock", "gpu.lock"])
def test_a_lock_pins_every_dependency(lock: str) -> None:
    projects = [
        tomllib.loads(each.read_text())["project"]
        for each in [ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")]
    ]
    own = {project["name"] for project in projects}
    names = {_plain(name) for project in projects for name in project.get("dependencies", ())}
    assert names - _pins(lock).keys() - own == set()


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*.lock")), ids=lambda lock: lock.name)
def test_a_line_of_a_lock_is_a_version_with_the_hashes_of_its_files(lock: Path) -> None:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    pinned = re.compile(r"[\w.-]+(\[[\w,-]+\])?==[\w.+]+( ; [^-]+)?( --hash=sha256:[0-9a-f]{64})+")
    assert [line for line in lines if not pinned.fullmatch(line)] == []


@pytest.mark.parametrize("extra", ["remotes.lock", "jupyter.lock"])
def test_an_extra_lock_changes_no_package_of_the_environment_that_it_is_installed_in(extra: str) -> None:
    cpu, gpu, pins = _pins("cpu.lock"), _pins("gpu.lock"), _pins(extra)
    assert pins.keys() & cpu.keys() == set()
    assert {name: pin for name, pin in pins.items() if gpu.get(name, pin) != pin} == {}


def test_what_is_installed_is_what_the_lock_pins_and_nothing_else() -> None:
    """Else a package that somebody installed by hand hides that a fresh machine would lack it."""
    installed = {_plain(each.name): each.version for each in distributions()}
    pins = _pins("gpu.lock" if "sglang-kernel" in installed else "cpu.lock")
    assert {name: installed.get(name) for name in pins} == pins
    extras = _pins("remotes.lock").keys() | _pins("jupyter.lock").keys()
    own = {tomllib.loads(path.read_text())["project"]["name"] for path in ROOT.glob("packages/*/pyproject.toml")}
    assert installed.keys() - pins.keys() - extras <= {"dagrpo", *own, "pip", "uv", "setuptools"}


LOCK = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / "requirements/gpu.lock").read_text(), re.MULTILINE))
COMPILER = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl")


def _major_minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def test_compiler_and_headers_are_of_the_cuda_whose_runtime_torch_brings() -> None:
    cuda = _major_minor(LOCK["nvidia-cuda-runtime"])
    assert {name: _major_minor(LOCK[name]) for name in COMPILER} == dict.fromkeys(COMPILER, cuda)
    assert _major_minor(LOCK["cuda-toolkit"]) == cuda


def test_the_compiler_that_is_looked_for_and_the_least_driver_are_those_of_the_cuda_in_the_lock() -> None:
    cuda = ".".join(_major_minor(LOCK["nvidia-cuda-runtime"]))
    assert cuda == CUDA == ".".join(map(str, gpus.CUDA))
    assert {"13.0": 580}[cuda] == gpus.LEAST_DRIVER, "of CUDA's release notes, table of driver versions, on Linux"


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
