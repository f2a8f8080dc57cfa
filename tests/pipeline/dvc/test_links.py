"""DVC leaves the outputs of other experiments in place. A failure here: read its new version."""

import subprocess
from pathlib import Path

import pytest

from dagrpo.core.errors import UserError
from dagrpo.pipeline.dvc.links import LINKS, keep_other_experiments

PIPELINE = """
stages:
  make:
    matrix:
      name: ["${name}"]
    cmd: mkdir -p results/${item.name} && echo ${item.name} > results/${item.name}/made
    outs:
    - results/${item.name}
"""


def _dvc(*arguments: str) -> None:
    done = subprocess.run(["dvc", *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("kept", [True, False])
def test_a_checkout_leaves_the_outputs_of_another_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    _dvc("init", "-q")
    Path("dvc.yaml").write_text(PIPELINE)
    if kept:
        keep_other_experiments()
        assert LINKS.exists()
    for name in ("one", "two"):
        Path("params.yaml").write_text(f"name: {name}")
        _dvc("repro")
    _dvc("checkout")
    assert Path("results/two/made").exists()
    assert Path("results/one/made").exists() == kept, (
        "without it DVC removes them: if it no longer does, the trigger can go"
    )


def test_a_damaged_database_of_dvc_is_named_with_what_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".dvc").mkdir()
    database = tmp_path / "links/cache.db"
    database.parent.mkdir()
    database.write_text("damaged")
    LINKS.parent.mkdir()
    LINKS.write_text(str(database))
    with pytest.raises(UserError, match=r"links/cache.db, .*not a database.*delete .*/links, which DVC creates again"):
        keep_other_experiments()
