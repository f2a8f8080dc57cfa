"""The environment is what a lock says, and the project's list of dependencies is covered by both locks."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _pins(lock: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / lock).read_text().splitlines()
    return {_plain(name): pin.split()[0] for name, _, pin in (line.partition("==") for line in lines if "==" in line)}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower().strip()


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def test_the_installed_versions_are_those_of_the_lock() -> None:
    lock = "gpu.lock" if _installed("sglang-kernel") else "cpu.lock"
    pins = _pins(lock)
    assert {name: _installed(name) for name in pins} == pins


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


def test_nothing_is_installed_that_the_locks_do_not_name() -> None:
    """Else a package that somebody installed by hand hides that a fresh machine would lack it."""
    lock = "gpu.lock" if _installed("sglang-kernel") else "cpu.lock"
    installed = {_plain(distribution.name) for distribution in distributions()}
    extras = _pins("remotes.lock").keys() | _pins("jupyter.lock").keys()
    own = {tomllib.loads(path.read_text())["project"]["name"] for path in ROOT.glob("packages/*/pyproject.toml")}
    assert installed - _pins(lock).keys() - extras <= {"dagrpo", *own, "pip", "uv", "setuptools"}
