"""`dagrpo clean --override-runs` removes what tries have made, and nothing that only looks like it."""

from pathlib import Path

import pytest
from filelock import FileLock

from dagrpo.cli.clean import remove_override_runs
from dagrpo.core.errors import UserError
from dagrpo.pipeline.locks import lock_of

TRY = "tiny~0123abcd"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With an experiment, a try that was run, and somebody's own folder."""
    monkeypatch.chdir(tmp_path)
    for folder in (
        f"results/{TRY}",
        f"data/{TRY}",
        f".state/{TRY}-0123456789abcdef",
        "results/tiny",
        "results/old~20250101",
    ):
        Path(folder).mkdir(parents=True)
        Path(folder, "file").write_text("content")
    lock_of(TRY).parent.mkdir(parents=True)
    lock_of(TRY).touch()
    return tmp_path


def test_tries_are_removed_with_their_states_and_named_and_no_link_is_followed(project: Path) -> None:
    (project / "outside").mkdir()
    (project / "outside/file").touch()
    (project / "models").mkdir()
    (project / f"models/{TRY}").symlink_to(project / "outside")
    (line,) = remove_override_runs(project)
    assert line.startswith(f"{TRY}: removed data/{TRY}, results/{TRY}, .state/{TRY}-0123456789abcdef (")
    assert list(project.glob(f"*/{TRY}*/file")) == [project / f"models/{TRY}/file"]
    assert list(remove_override_runs(project)) == ["There are no override runs."]
    assert (project / "results/tiny/file").exists()
    assert (project / "results/old~20250101/file").exists()


def test_a_try_that_is_being_run_is_refused(project: Path) -> None:
    with FileLock(lock_of(TRY)), pytest.raises(UserError, match=f"{TRY} is being run: stop it first"):
        list(remove_override_runs(project))
    assert (project / f"results/{TRY}/file").exists()
