"""`dagrpo grade`: what each extractor reads, and where they disagree."""

import json
import re
from pathlib import Path

import pytest
from packages.dagrpo_sandbox.tests.running import without_sandbox

from dagrpo.cli.grade import EXTRACTORS, grade, grade_lines, read_lines
from dagrpo.core.errors import UserError

TEXTS = ("#### 34", "it is 34", "#### 34 (see step 2)", "no idea")


def _write(folder: Path, texts: tuple[str, ...] = TEXTS, truth: str = "34") -> Path:
    lines = [json.dumps({"completion": text, "ground_truth": truth}) for text in texts]
    (folder / "completions.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "completions.jsonl"


def test_every_extractor_reads_every_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path)
    graded = grade_lines(read_lines(path), "gsm8k", path)
    assert EXTRACTORS == ("strict", "flexible", "exact")
    verdicts = [[score.verdict for score in each.scores] for each in graded]
    assert verdicts == [
        ["right", "right", "right"],
        ["missing", "right", "missing"],
        ["right", "wrong", "missing"],
        ["missing", "missing", "missing"],
    ]
    grade("gsm8k", path)
    output = capsys.readouterr().out
    assert "strict: 2 of 4 right (50.0%)" in output
    assert "The extractors disagree on line 2, 3." in output


def test_a_long_ground_truth_is_shown_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = " ".join(f"{number:03}" for number in range(100, 130))
    grade("math", _write(tmp_path, (f"\\boxed{{{truth}}}",), truth))
    output = capsys.readouterr().out
    assert [number for number in truth.split() if number not in output] == []


def test_a_hostile_answer_cannot_write_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grade("dapo", _write(tmp_path, ("Answer: \x1b[2J[red]x", "Answer: " + "9" * 10_000)))
    output = capsys.readouterr().out
    assert "\x1b[2J" not in output
    assert "[red]x" in output
    assert len(re.findall("9", output)) < 300


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"{", r"line 1 is not valid JSON"),
        (b'{"completion": "x"}', "line 1 has no text `ground_truth`"),
        (b'\n{"completion": 3, "ground_truth": "3"}', "line 2 has no text `completion`"),
    ],
)
def test_a_bad_file_is_refused_by_line_and_field(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "completions.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_lines(tmp_path / "completions.jsonl")
    path = _write(tmp_path, truth="many")
    with pytest.raises(ValueError, match=r"completions.jsonl, line 1, field `ground_truth`: .*many"):
        grade_lines(read_lines(path), "gsm8k", path)


def test_programs_have_the_limits_of_params_yaml_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    truth = json.dumps({"inputs": [""], "outputs": ["3"]})
    path = _write(tmp_path, ("```python\nx = bytes(150 << 20)\nprint(3)\n```",), truth)
    try:
        grade("mbpp", path)
    except UserError as error:  # no program can be isolated here
        without_sandbox(error)
    (tmp_path / "params.yaml").write_text("evaluation: {scoring: {unit_tests: {memory_mb: 96}}}\n")
    grade("mbpp", path)
    assert re.findall(r"strict: (\d) of 1 right", capsys.readouterr().out) == ["1", "0"]
