"""`dagrpo new`: what it writes passes its own test, the linter and the formatter, here and in somebody else's package."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dagrpo.cli.application import app
from dagrpo.cli.new.command import PLACES, Kind
from dagrpo.config.places import ROOT
from dagrpo.config.presets import composed, preset_text
from dagrpo.config.selection import selected_modules
from dagrpo.core.errors import UserError

pytestmark = pytest.mark.slow
SECONDS = 300


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["new", *arguments])


def check_style(folder: Path, *options: str) -> None:
    """Run the linter and the formatter with the repository's settings."""
    for ruff in (("check", *options), ("format", "--check")):
        files = sorted(str(path) for path in folder.rglob("*begun*.py"))
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *ruff, "--config", str(ROOT / "pyproject.toml"), *files],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def in_a_package_of_ones_own(folder: Path) -> list[Path]:
    """Write one of each kind into a package in the working folder; returns their tests."""
    for kind in Kind:
        done = run(kind, f"begun_{kind}", "--package", "lab/my_lab")
        assert done.exit_code == 0, done.exception
        assert f"my_lab.begun_{kind}{'.' if kind == Kind.TASK else ':'}{PLACES[kind].attribute}" in done.stdout
        assert f"PYTHONPATH={folder / 'lab'} pytest lab/tests/test_begun_{kind}.py" in done.stdout
    check_style(folder / "lab", "--ignore", "I")  # where imports stand depends on the other repository
    return sorted((folder / "lab/tests").glob("test_*.py"))


def in_the_repository(folder: Path) -> list[Path]:
    """Write one of each kind into a copy of the repository, which is the working folder; returns their tests."""
    shutil.copytree(ROOT / "src", folder / "src")  # with what is compiled
    shutil.copytree(ROOT / "packages/dagrpo_answers/src", folder / "packages/dagrpo_answers/src")
    for kind in Kind:
        done = run(kind, f"begun_{kind}")
        assert done.exit_code == 0, done.exception
        assert f"pytest {PLACES[kind].tests}/test_begun_{kind}.py" in done.stdout
    check_style(folder)
    return sorted(folder.rglob("test_begun_*.py"))


@pytest.mark.nightly
def test_each_kind_works_in_the_repository_and_in_a_package_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = []
    for place, write in (("own", in_a_package_of_ones_own), ("repository", in_the_repository)):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        tests += write(tmp_path / place)
    assert len(tests) == 2 * len(Kind)
    path = f"{tmp_path / 'own/lab'}:{tmp_path / 'repository/src'}:{tmp_path / 'repository/packages/dagrpo_answers/src'}"
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    settings = ("-p", "no:cacheprovider", "-n0", "--import-mode=importlib")
    command = [sys.executable, "-m", "pytest", "-q", *settings, f"--rootdir={tmp_path}", *map(str, tests)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def test_params_yaml_takes_what_new_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "lab")
    for kind in Kind:
        printed = run(kind, f"printed_{kind}", "--package", "lab/my_lab").stdout
        if kind == Kind.TOOL:
            continue  # a task names it
        selection = re.search("Selected by: (.*?)(, or .*)?$", printed, re.MULTILINE)
        assert selection is not None
        preset = tmp_path / f"{kind}.yaml"
        preset.write_text(selection[1])
        params = composed([str(preset)])
        assert f"my_lab.printed_{kind}" in preset_text([str(preset)])
        assert f"my_lab.printed_{kind}" in json.dumps(selected_modules(params, params.experiment.tasks))


def test_a_name_that_is_none_or_is_taken_is_refused_and_nothing_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, sentence in (
        (("loss", "lambda"), "'lambda' is not a valid name of a loss: use lower-case letters"),
        (("task", "../x"), "'../x' is not a valid name of a task"),
        (("loss", "gspo"), "A loss `gspo` already exists"),
        (("tool", "mine"), "is not the repository of dagrpo: name the folder of a package of yours with --package."),
        (("tool", "mine", "--package", "my-lab"), "'my-lab' is not a valid name of a package"),
    ):
        done = run(*arguments)
        assert isinstance(done.exception, UserError)
        assert sentence in str(done.exception)
    assert list(tmp_path.iterdir()) == []
    module = tmp_path / "lab/my_lab/mine.py"
    module.parent.mkdir(parents=True)
    module.write_text("mine")
    done = run("verifier", "mine", "--package", "lab/my_lab")
    assert "lab/my_lab/mine.py already exists" in str(done.exception)
    assert module.read_text() == "mine"
