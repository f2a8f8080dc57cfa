"""The made-up project, as the working directory of a test."""

from pathlib import Path

import pytest
from tests.pipeline.changes.made_up import Project, make_project


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Everything is made, and nothing has changed since."""
    monkeypatch.chdir(tmp_path)
    return make_project(tmp_path)
