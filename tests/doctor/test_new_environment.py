"""The project's environment on a machine whose own Python is not fit, with a uv that is made up."""

import zipfile
from pathlib import Path

import pytest

from dagrpo.doctor import new_environment as made


def _wheel(folder: Path, program: str) -> None:
    """Put a wheel of uv into a folder that the package tools look into."""
    name = f"uv-{made.UV}-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr(f"uv-{made.UV}.data/scripts/uv", program)


@pytest.fixture
def unfit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without venv, whose package index is a folder."""
    monkeypatch.setattr("needs._has_venv", lambda: False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    return tmp_path


def test_uv_of_a_folder_of_wheels_is_asked_for_a_python_with_headers(unfit: Path) -> None:
    _wheel(unfit, f'#!/bin/sh\necho "$@" > {unfit}/asked\n')
    made.main(unfit / "environment")
    asked = (unfit / "asked").read_text().split()
    assert asked == ["venv", "--quiet", "--seed", "--python", "3.12", "--managed-python", str(unfit / "environment")]


def test_a_python_that_uv_cannot_get_is_told_with_the_packages_to_install(unfit: Path) -> None:
    _wheel(unfit, "#!/bin/sh\nexit 2\n")
    with pytest.raises(SystemExit, match=r"uv got no Python 3\.12.*apt-get install -y python3-venv python3-dev"):
        made.main(unfit / "environment")


def test_an_index_that_does_not_answer_is_told(unfit: Path) -> None:
    with pytest.raises(SystemExit, match=r"uv 0\.13\.8 cannot be had \(URLError"):
        made.main(unfit / "environment")


def test_a_python_without_headers_alone_is_taken_where_uv_gets_none(
    unfit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("needs._has_venv", lambda: True)
    monkeypatch.setattr("sysconfig.get_path", lambda name, **more: str(unfit))
    monkeypatch.setattr(made, "_of_this_python", lambda folder: 0)
    _wheel(unfit, "#!/bin/sh\nexit 2\n")
    with pytest.raises(SystemExit) as ended:
        made.main(unfit / "environment")
    assert ended.value.code == 0


def test_the_uv_that_is_fetched_is_the_one_that_make_installs() -> None:
    assert f"uv=={made.UV}" in (Path(__file__).parents[2] / "Makefile").read_text()
