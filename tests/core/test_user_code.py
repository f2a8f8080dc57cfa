"""An edit to code that parameters name runs the stages that use it again, and no others."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dagrpo.config.schema import parse
from dagrpo.core.user_code import NamedCode
from dagrpo.pipeline import identity
from dagrpo.pipeline.identity import LIBRARY, code_digest
from dagrpo.pipeline.job_files import code_files
from dagrpo.pipeline.stages import all_stages

PROGRAM = {
    "rollout": {"agent": {"name": "program", "command": [sys.executable, "agent.py", "--words", "words.txt", "8"]}}
}
ENVIRONMENT = {"rollout": {"agent": {"name": "environment", "environment": "its_lab.worlds:World"}}}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = tmp_path / "its_lab"
    lab.mkdir()
    (lab / "__init__.py").touch()
    (lab / "worlds.py").write_text(
        'from its_lab import maps\n\n\nclass World:\n    """A world."""\n\n    def reset(self) -> None: ...\n'
    )
    for file in (lab / "maps.py", tmp_path / "agent.py", tmp_path / "words.txt", tmp_path / "other.py"):
        file.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    identity._folder_of.cache_clear()
    identity._file_of.cache_clear()


def _own_code(values: dict[str, Any], stage: str) -> list[str]:
    return [
        file
        for file in code_files(parse(values), all_stages()[stage])
        if not file.startswith(("src/dagrpo/", "packages/", LIBRARY))
    ]


@pytest.mark.parametrize("stage", ["train", "sample", "difficulty"])
def test_the_files_that_a_program_is_started_with_are_code_of_what_runs_it(stage: str) -> None:
    assert _own_code(PROGRAM, stage) == ["agent.py", "words.txt"]


def test_a_module_that_is_named_is_code_with_what_it_imports() -> None:
    assert _own_code(ENVIRONMENT, "train") == ["its_lab/__init__.py", "its_lab/maps.py", "its_lab/worlds.py"]


@pytest.mark.parametrize("stage", ["prepare", "sft", "score"])
def test_stages_that_run_no_agent_do_not_depend_on_it(stage: str) -> None:
    assert _own_code(PROGRAM, stage) == _own_code(ENVIRONMENT, stage) == []


def test_words_that_cannot_name_a_file_are_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code on the command line is longer than the name of any file, and a path may lead where nobody may look."""
    words = ["python", "-c", "print(1);" * 100, "a\0b", "", "/home/somebody/else"]
    assert NamedCode.of_command(words) == NamedCode()

    def refuse(path: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refuse)
    assert NamedCode.of_command(["python", "agent.py"]) == NamedCode()


def test_an_edit_to_the_program_is_other_code() -> None:
    before = code_digest(code_files(parse(PROGRAM), all_stages()["train"]))
    Path("agent.py").write_text("edited = 1\n")
    assert code_digest(code_files(parse(PROGRAM), all_stages()["train"])) != before
