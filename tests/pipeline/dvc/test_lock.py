"""A damaged dvc.lock is one sentence before any work, and costs no record."""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hostile import refusal
from tests.pipeline.snakemake import clones

from dagrpo.core.errors import UserError
from dagrpo.pipeline.dvc.private import LOCK
from dagrpo.pipeline.dvc.recording import COPY, require_readable_lock
from dagrpo.pipeline.runner import RAN
from dagrpo.utils.files import read_json, write_json

WHOLE = "schema: '2.0'\nstages:\n  model@tiny:\n    cmd: snakemake\n    outs:\n    - path: models/tiny\n      md5: abc.dir\n"
CONFLICT = f"<<<<<<< HEAD\n{WHOLE}=======\nschema: '2.0'\n>>>>>>> other\n"
DAMAGED = {
    "empty": b"",
    "binary": bytes(range(256)),
    "with the marks of a merge": CONFLICT.encode(),
    "truncated": WHOLE.encode()[:9],
    "a list": b"- 1\n",
    "a number": b"3",
}


@pytest.fixture
def _in_an_empty_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)


@pytest.mark.usefixtures("_in_an_empty_project")
@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_it_is_one_sentence_with_what_to_do(content: bytes) -> None:
    LOCK.write_bytes(content)
    with pytest.raises(
        UserError, match=r"^dvc.lock is damaged \(.*\): restore it with `git checkout HEAD -- dvc.lock`"
    ):
        require_readable_lock()


@pytest.mark.usefixtures("_in_an_empty_project")
def test_a_whole_one_and_none_are_accepted() -> None:
    require_readable_lock()
    LOCK.write_text(WHOLE)
    require_readable_lock()
    assert not RAN.exists()


@pytest.mark.usefixtures("_in_an_empty_project")
def test_what_was_made_is_noted_to_be_recorded_anew_of_every_experiment_and_of_no_try() -> None:
    for experiment in ("one", "two", "two~0123abcd"):
        made = f"results/{experiment}/report/report.html"
        record = {"experiment": experiment, "key": f"key of {experiment}", "outputs": {made: "0" * 64}}
        write_json(Path(made).with_name("provenance.json"), record)
    Path("data/one").mkdir(parents=True)
    Path("data/one/provenance.json").write_text("{")
    LOCK.write_text("")
    with pytest.raises(UserError):
        require_readable_lock()
    entries = {path.parent.name: read_json(path) for path in RAN.rglob("*.json")}
    assert entries.keys() == {"one", "two"}
    provenance = "results/one/report/provenance.json"
    assert entries["one"] == {
        "key": "key of one",
        "outputs": ["results/one/report/report.html", provenance],
        "provenance": provenance,
    }


@pytest.mark.usefixtures("_in_an_empty_project")
@pytest.mark.parametrize("length", [0, 20, len(WHOLE) - 2])
def test_one_that_a_killed_repro_has_cut_short_is_again_what_its_last_stage_had_kept(
    length: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    LOCK.write_text(WHOLE)
    with monkeypatch.context() as driven:
        driven.setenv("DVC_STAGE", "train@tiny")
        require_readable_lock()
    LOCK.write_text((WHOLE + "  score@tiny:\n")[:length])
    require_readable_lock()
    assert LOCK.read_text() == WHOLE
    assert "dvc.lock was cut short" in capsys.readouterr().err


@pytest.mark.usefixtures("_in_an_empty_project")
def test_the_marks_of_a_merge_are_not_replaced_by_what_was_kept() -> None:
    COPY.parent.mkdir()
    COPY.write_text(WHOLE)
    LOCK.write_text(CONFLICT)
    with pytest.raises(UserError, match="restore it with"):
        require_readable_lock()
    assert LOCK.read_text() == CONFLICT


@pytest.mark.usefixtures("_in_an_empty_project")
def test_what_was_kept_is_not_put_back_where_it_is_damaged_itself() -> None:
    COPY.parent.mkdir()
    COPY.write_text(CONFLICT[:-1])
    LOCK.write_text(WHOLE[:20])
    with pytest.raises(UserError, match="restore it with"):
        require_readable_lock()
    assert LOCK.read_text() == WHOLE[:20]


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_accepted_or_refused_in_a_sentence(content: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.chdir(folder)
        Path("dvc.lock").write_bytes(content)
        sentence = refusal(require_readable_lock)
        assert len(sentence) < 500
        assert "\n" not in sentence


@pytest.mark.nightly
@pytest.mark.dag
def test_the_command_of_the_sentence_has_all_recorded_again(run_by_snakemake: Path, tmp_path: Path) -> None:
    folder = clones.copied(run_by_snakemake, tmp_path / "clone")
    whole = (folder / LOCK).read_text()
    for name in ("binary", "with the marks of a merge"):
        (folder / LOCK).write_bytes(DAMAGED[name])
        command = ("snakemake", "--cores", "all", "target")
        refused = subprocess.run(
            command, cwd=folder, env=clones.environment(folder), capture_output=True, text=True, check=False
        )
        said = refused.stdout + refused.stderr
        assert refused.returncode == 1
        assert "dvc.lock is damaged" in said
        assert "Traceback" not in said
    (folder / LOCK).unlink()
    clones.run(folder, *command)
    assert (folder / LOCK).read_text() == whole
    assert "up to date" in clones.run(folder, "dvc", "status")
