"""The made-up project of tests/pipeline/changes, and its crate."""

import shutil
from contextlib import chdir
from pathlib import Path

import pytest
from tests.pipeline.changes.conftest import made_up
from tests.pipeline.changes.made_up import Project, make_project

from dagrpo_publish.crate.finished import Finished, read_finished
from dagrpo_publish.crate.writing import write_crate

__all__ = ["made_up"]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Finished]:
    """A finished project with its crate in the folder `a.crate`. Not to be changed."""
    folder = tmp_path_factory.mktemp("written")
    with chdir(folder):
        project = make_project(folder)
        finished = read_finished(project.name)
        write_crate(finished, Path("a.crate"))
    return project, finished


@pytest.fixture
def crate(written: tuple[Project, Finished], tmp_path: Path) -> Path:
    """A copy of the crate."""
    return Path(shutil.copytree(written[0].root / "a.crate", tmp_path / "a.crate"))
