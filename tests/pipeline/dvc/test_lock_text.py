"""Entries of dvc.lock as text: those of one experiment cost the same beside any number of others."""

import io
import math
import time
from hashlib import md5
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from dagrpo.pipeline.dvc.private import HEAD, entries_of, fault_of, record_outputs, text_of

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


def test_recording_a_stage_costs_the_same_beside_any_number_of_other_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".dvc").mkdir()
    Path(".dvc/config").write_text("[core]\n  no_scm = true\n")
    Path("dvc.yaml").write_text("stages:\n  score: {cmd: 'true', outs: [made]}\n")
    record_outputs(lambda address, outs: False)  # imports DVC
    sizes, seconds = (10, 100, 1000), []
    for size in sizes:
        Path("dvc.lock").write_text(HEAD + "".join(ENTRY.replace("tiny", f"e{number}") for number in range(size)))
        Path("made").write_text(str(size))
        began = time.process_time()
        assert record_outputs(lambda address, outs: True) == {}
        seconds.append(time.process_time() - began)
        entries = entries_of(Path("dvc.lock").read_text())
        assert entries is not None
        assert len(entries) == size + 1
        assert md5(str(size).encode()).hexdigest() in entries["  score:"]
    exponent = math.log(seconds[-1] / seconds[0]) / math.log(sizes[-1] / sizes[0])
    assert exponent < 0.3, seconds
