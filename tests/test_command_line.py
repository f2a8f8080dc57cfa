"""The command `dagrpo`: a mistake is one sentence and exit code 1, wherever it is made."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

DAGRPO = Path(sys.executable).with_name("dagrpo")


def _run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([DAGRPO, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("use", "arithmetic_tinny"), "there is no preset `arithmetic_tinny` in presets"),
        (("inspect", "nowhere"), "nowhere is not a checkpoint"),
        (("lineage", "nothing.json"), "nothing.json is neither a file nor a digest"),
        (("grade", "gsm8k", "nothing.jsonl"), "nothing.jsonl is missing"),
        (("search", "nothing.parquet"), "nothing.parquet is missing"),
        (("compare", "one", "two"), "There is no experiment `one`"),
        (("why", "nothing.json"), "nothing.json is not made by a stage"),
        (("new", "loss", "gspo"), "There is a loss `gspo` already"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = _run(tmp_path, *arguments)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_its_help_offers_completion_and_says_where_to_begin(tmp_path: Path) -> None:
    shown = _run(tmp_path, "--help").stdout
    assert "--install-completion" in shown
    assert "Begin with `dagrpo doctor`" in shown


def test_its_version_is_that_of_the_package(tmp_path: Path) -> None:
    done = _run(tmp_path, "--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"dagrpo {version('dagrpo')}, Python 3.")


def test_the_names_of_experiments_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("arithmetic_tiny", "arithmetic_tiny-gspo", "other"):
        (tmp_path / "results" / name).mkdir(parents=True)
    monkeypatch.setenv("_DAGRPO_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "dagrpo compare arith")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert _run(tmp_path).stdout.split() == ["arithmetic_tiny", "arithmetic_tiny-gspo"]
