"""The environment is what a lock says, and the project's list of dependencies is covered by both locks."""

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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
