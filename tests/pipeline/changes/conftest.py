"""The made-up project, as the working directory of a test."""

import shutil
from contextlib import chdir
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from tests.pipeline.changes.made_up import Project, make_project


@cache
def _template(base: Path) -> Project:
    folder = Path(mkdtemp(dir=base))
    with chdir(folder):
        return make_project(folder)


@pytest.fixture
def made_up(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Everything is made, and nothing has changed since: a copy of a project that is made once."""
    template = _template(tmp_path_factory.getbasetemp())
    shutil.copytree(template.root, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return replace(template, root=tmp_path)
