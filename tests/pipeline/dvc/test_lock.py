"""A damaged dvc.lock is one sentence before any work, and costs no record; its entries are found as text."""

import io
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from tests.hostile import refusal

from dagrpo.core.errors import UserError
from dagrpo.pipeline.dvc.private import HEAD, LOCK, entries_of, fault_of, record_outputs, text_of
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


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_accepted_or_refused_in_a_sentence(content: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.chdir(folder)
        Path("dvc.lock").write_bytes(content)
        sentence = refusal(require_readable_lock)
        assert len(sentence) < 500
        assert "\n" not in sentence


ENTRY = """\
  score@tiny-3:
    cmd: snakemake results/tiny/runs/seed_3/scores.parquet
    deps:
    - path: results/tiny/runs/seed_3/completions.parquet
      hash: md5
      md5: 0123456789abcdef0123456789abcdef
      size: 7
    - path: src/dagrpo/a.py
      hash: md5
      md5: c4ca4238a0b923820dcc509a6f75849b
      size: 1
    - path: workflow/scripts/stage.py
      hash: md5
      md5: 3b712de48137572f3849aabd5666a4e3
      size: 2
    params:
      params.yaml:
        evaluation.scoring:
          extractor: strict
    outs:
    - path: results/tiny/runs/seed_3/scores.parquet
      hash: md5
      md5: fedcba9876543210fedcba9876543210
      size: 9
"""


def test_entries_are_found_as_dvc_writes_them_and_give_the_same_text() -> None:
    stream = io.StringIO()
    stages = {f"score@e-{number}": {"cmd": "a " * 80, "deps": [{"path": "x", "md5": "1"}]} for number in range(3)}
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump({"schema": "2.0", "stages": stages}, stream)
    entries = entries_of(stream.getvalue())
    assert entries is not None
    assert list(entries) == [f"  score@e-{number}:" for number in range(3)]
    assert text_of(entries) == stream.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "schema: '2.0'\nstages: {}\n",
        HEAD + ENTRY + "datasets:\n- name: x\n",
        HEAD + "# mine\n" + ENTRY,
        HEAD + "  # mine\n" + ENTRY,
        HEAD + ENTRY.replace("  score@tiny-3:", "  ? score@tiny-3\n  :"),
        HEAD + ENTRY.replace("    cmd", "   cmd"),
    ],
)
def test_a_lock_with_anything_else_in_it_is_left_to_dvc(text: str) -> None:
    assert entries_of(text) is None


def test_a_line_that_begins_no_entry_and_no_key_is_named() -> None:
    assert fault_of((HEAD + ENTRY).encode()) is None
    assert fault_of((HEAD + ENTRY + "=======\n").encode()) == f"it is not YAML: line {3 + ENTRY.count(chr(10))}"
    assert fault_of(b"stages:\n") == "it is not what DVC writes"
    assert fault_of(HEAD.encode() + b"\xff\n") == "it is not text"


def test_a_stage_is_recorded_beside_those_of_other_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".dvc").mkdir()
    Path(".dvc/config").write_text("[core]\n  no_scm = true\n")
    Path("dvc.yaml").write_text("stages:\n  score: {cmd: 'true', outs: [made]}\n")
    Path("made").write_text("x")
    others = "".join(ENTRY.replace("tiny", f"e{number}") for number in range(9))
    LOCK.write_text(HEAD + others)
    assert record_outputs(lambda address, outs: True) == {}
    text = LOCK.read_text()
    assert text.startswith(HEAD + others)
    assert list(entries_of(text) or ())[9:] == ["  score:"]
