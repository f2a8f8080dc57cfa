"""Raw rows from local copies: every fault is one sentence that names the file and the row."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.data.preparing import mirror_of

from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source, mirror_place
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import TaskRows, chat

SOURCE = Source(
    repository="someone/sums",
    revision="0" * 40,
    hub_splits={"train": "train", "validation": "validation", "test": "test"},
    mirror_files={"train": "sums/train.jsonl", "validation": "sums/val.jsonl", "test": "sums/test.jsonl"},
    columns={"question": ("Question", "question"), "answer": ("answer",)},
    rows={"train": 2, "validation": 1, "test": 1},
)
ROWS = [{"question": "1 + 1", "answer": "#### 2"}, {"question": "1 + 2", "answer": "#### 3"}]
TEST = {"question": "2 + 2", "answer": "#### 4"}


def _to_row(raw: RawRow) -> Row:
    question, answer = raw.text("question"), raw.text("answer")
    return Row(prompt=chat(question), question=question, answer=answer, ground_truth=answer)


def _load(folder: Path, params: Data | None = None) -> TaskRows:
    task = sourced_task("sums", SOURCE, _to_row, verifier="gsm8k")
    return task.load((params or Data()).model_copy(update={"mirror": str(folder)}))


def _lines(rows: list[Mapping[str, object]]) -> bytes:
    return b"".join(json.dumps(raw).encode() + b"\n" for raw in rows)


def _read(folder: Path, train: bytes, params: Data | None = None) -> TaskRows:
    mirror_of(folder, {"sums/train.jsonl": train, "sums/test.jsonl": [TEST]})
    return _load(folder, params)


def _questions(problems: TaskRows, split: str = "train") -> list[str]:
    return [row.question for row in problems.splits[split]]


def test_a_line_may_hold_other_separators_and_no_end_and_a_column_another_name_and_a_number(tmp_path: Path) -> None:
    strange = {"Question": "a\u2028b\u0085c", "answer": 2, "id": None}
    content = (json.dumps(strange, ensure_ascii=False) + "\n" + json.dumps(ROWS[1])).encode()
    problems = _read(tmp_path, content)
    assert _questions(problems) == ["a\u2028b\u0085c", "1 + 2"]
    assert problems.splits["train"][0].answer == "2"


def test_either_format_will_do_and_the_named_one_goes_first(tmp_path: Path) -> None:
    mirror_of(tmp_path, {"sums/train.parquet": ROWS, "sums/test.parquet": [TEST]})
    problems = _load(tmp_path)
    assert _questions(problems) == ["1 + 1", "1 + 2"]
    assert set(problems.files) == {"sums/train.parquet", "sums/test.parquet"}
    mirror_of(tmp_path, {"sums/test.jsonl": [{"question": "3 + 3", "answer": "#### 6"}]})
    assert _questions(_load(tmp_path), "test") == ["3 + 3"]


def test_a_validation_split_is_read_where_the_mirror_has_it(tmp_path: Path) -> None:
    assert set(_read(tmp_path, _lines([*ROWS])).splits) == {"train", "test"}
    (tmp_path / "sums/val.jsonl").write_bytes(_lines([{"question": "5 + 5", "answer": "#### 10"}]))
    problems = _load(tmp_path)
    assert _questions(problems, "validation") == ["5 + 5"]
    assert problems.splits["validation"][0].split == "validation"
    assert problems.read == {"train": 2, "validation": 1, "test": 1}


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (b"", r"train\.jsonl is empty: replace it"),
        (b"\n\n", r"train\.jsonl is empty: replace it"),
        (_lines([*ROWS]) + b'{"question": "1', r"train\.jsonl, line 3 is not valid JSON"),
        (_lines([*ROWS[:1]]) + b"\n" + _lines([*ROWS[1:]]), r"train\.jsonl, line 2 is not valid JSON"),
        (b"\xff\xfe{}\n", r"train\.jsonl, line 1 is not valid JSON"),
        (b"[" * 100_000 + b"\n", r"train\.jsonl, line 1 is not valid JSON"),
        (b'{"question": "1", "answer": ' + b"7" * 5000 + b"}\n", r"train\.jsonl, line 1 is not valid JSON"),
        (b"[1]\n", r"train\.jsonl, line 1 is list, not an object"),
        (
            _lines([ROWS[0], {"question": "1 + 2"}]),
            r"train\.jsonl, row 2, field `answer` is missing \(the columns are: question\)",
        ),
        (_lines([{"frage": "1", "answer": "2"}]), r"train\.jsonl, row 1, field `Question` is missing"),
        (
            _lines([*ROWS[:1]]),
            r"train\.jsonl holds 1 rows, but the train split of someone/sums has 2: .* set data\.max_train \(to 1 ",
        ),
    ],
)
def test_a_fault_is_named_by_file_and_row(tmp_path: Path, train: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        _read(tmp_path, train)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_sample_of_a_split_is_enough_under_its_limit(tmp_path: Path) -> None:
    assert len(_read(tmp_path, _lines([*ROWS[:1]]), Data(max_train=1)).splits["train"]) == 1
    mirror_of(tmp_path, {"sums/train.jsonl": ROWS, "sums/val.jsonl": ROWS})
    with pytest.raises(ValueError, match=r"val\.jsonl holds 2 rows, but the validation split .* set data\.max_test"):
        _load(tmp_path)
    assert len(_load(tmp_path, Data(max_test=1)).splits["validation"]) == 2


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"sums/train\.jsonl and .*sums/test\.jsonl are missing: put a copy of someone/sums there \(or one that ends in \.parquet\)",
    ):
        mirror_place(SOURCE, tmp_path)
