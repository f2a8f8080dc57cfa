"""The command `dagrpo`: a mistake is one sentence and exit code 1, wherever it is made."""

import subprocess
import sys
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
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = _run(tmp_path, *arguments)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_its_help_names_every_command_and_offers_completion(tmp_path: Path) -> None:
    shown = _run(tmp_path, "--help").stdout
    for command in (
        "use",
        "generate",
        "lineage",
        "grade",
        "search",
        "clean",
        "ui",
        "convert",
        "inspect",
        "diff",
        "verify",
    ):
        assert command in shown
    assert "--install-completion" in shown
