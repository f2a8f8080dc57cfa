"""A stage runs the code of the folder that it is in, whatever folder's dagrpo is installed."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.pipeline.snakemake import clones
from tests.pipeline.snakemake.clones import ROOT

MODEL = "models/tiny/tiny_qwen2/manifest.json"


def _run(folder: Path, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command with what the environment of the tests has installed: another folder's package."""
    own = {name: value for name, value in clones.environment(folder).items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=folder, env=own | environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_code_of_another_folder_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "try.py"
    script.write_text(
        f"import dagrpo\nfrom own_code import use_code_of\nfrom pathlib import Path\nuse_code_of(Path({str(tmp_path)!r}))\n"
    )
    path = f"{ROOT / 'workflow/scripts'}:{ROOT / 'src'}"
    done = _run(tmp_path, sys.executable, str(script), PYTHONPATH=path)
    assert done.returncode == 1
    assert f"{tmp_path} would run the code of another folder ({ROOT / 'src/dagrpo'}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_line_of_another_folder_writes_no_parameters_here(tmp_path: Path) -> None:
    (tmp_path / "src/dagrpo").mkdir(parents=True)
    (tmp_path / "Snakefile").touch()
    done = _run(tmp_path, sys.executable, "-m", "dagrpo", "use", "arithmetic_tiny", PYTHONPATH=str(ROOT / "src"))
    assert done.returncode == 1
    assert f"This folder has its own dagrpo, but the one that runs is {ROOT / 'src/dagrpo'}" in done.stderr
    assert not (tmp_path / "params.yaml").exists()


@pytest.mark.nightly
@pytest.mark.dag
def test_an_edited_clone_runs_its_own_code_under_the_python_of_snakemake_whatever_is_installed_or_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder's package is first on the path, and another environment is active."""
    programs = tmp_path / "foreign/bin"
    programs.mkdir(parents=True)
    for name in ("python", "python3"):
        (programs / name).write_text("#!/bin/sh\necho 'a foreign python' >&2\nexit 9\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("VIRTUAL_ENV", str(programs.parent))
    folder = clones.clone(tmp_path / "clone")
    stage = folder / "src/dagrpo/pipeline/stages/model.py"
    stage.write_text(stage.read_text().replace('f"model: ', 'f"edited model: '))
    path = clones.environment(folder)["PATH"]
    assert path.split(":")[0] == str(Path(sys.executable).parent)
    command = [sys.executable, "-m", "snakemake", "--cores", "all", MODEL]
    done = _run(folder, *command, PATH=f"{programs}:{path}", PYTHONPATH=str(ROOT / "src"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "edited model: tiny_qwen2" in done.stderr
    assert (folder / MODEL).is_file()
