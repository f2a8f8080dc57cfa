"""Raw rows from local copies: every fault is one sentence that names the file and the row."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from dagrpo.params.data import Data
from dagrpo.tasks.mirror import read_mirror
from dagrpo.tasks.source import Raw, Source

SOURCE = Source(
    repository="someone/sums",
    configuration=None,
    revision="0" * 40,
    hub_splits={"train": "train", "test": "test"},
    mirror_files={"train": "sums/train.jsonl", "test": "sums/test.jsonl"},
    columns={"question": ("Question", "question"), "answer": ("answer",)},
    rows={"train": 2, "test": 1},
)
ROWS = [{"question": "1 + 1", "answer": "#### 2"}, {"question": "1 + 2", "answer": "#### 3"}]


def _lines(rows: list[Mapping[str, object]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _read(folder: Path, train: bytes, params: Data | None = None) -> Raw:
    (folder / "sums").mkdir(exist_ok=True)
    (folder / "sums/train.jsonl").write_bytes(train)
    (folder / "sums/test.jsonl").write_bytes(_lines([{"question": "2 + 2", "answer": "#### 4"}]))
    return read_mirror(SOURCE, folder, params or Data())


def test_rows_come_as_text_with_their_place_and_the_digest_of_their_file(tmp_path: Path) -> None:
    raw = _read(tmp_path, _lines([*ROWS]))
    assert [row.fields for row in raw.rows["train"]] == ROWS
    assert [row.number for row in raw.rows["train"]] == [1, 2]
    assert raw.files["sums/train.jsonl"] == hashlib.sha256(_lines([*ROWS])).hexdigest()
    assert (raw.origin, raw.revision) == ("mirror", None)


def test_a_column_may_go_by_another_name_and_hold_a_number(tmp_path: Path) -> None:
    raw = _read(tmp_path, _lines([{"Question": "1 + 1", "answer": 2, "id": None}, *ROWS[1:]]))
    assert raw.rows["train"][0].fields == {"question": "1 + 1", "answer": "2"}


def test_a_line_may_hold_other_line_separators_and_the_last_may_have_no_end(tmp_path: Path) -> None:
    strange = {"question": "a\u2028b\u0085c", "answer": "#### 1"}
    content = (json.dumps(strange, ensure_ascii=False) + "\n" + json.dumps(ROWS[1])).encode()
    assert _read(tmp_path, content).rows["train"][0].fields == strange


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (b"", r"train\.jsonl is empty: replace it"),
        (b"\n\n", r"train\.jsonl is empty: replace it"),
        (_lines([*ROWS]) + b'{"question": "1', r"train\.jsonl, line 3 is not valid JSON"),
        (_lines([*ROWS[:1]]) + b"\n" + _lines([*ROWS[1:]]), r"train\.jsonl, line 2 is not valid JSON"),
        (b"\xff\xfe{}\n", r"train\.jsonl, line 1 is not valid JSON"),
        (b"[" * 100_000 + b"\n", r"train\.jsonl, line 1 is not valid JSON"),
        (b"[1]\n", r"train\.jsonl, line 1 is list, not an object"),
        (
            _lines([ROWS[0], {"question": "1 + 2"}]),
            r"train\.jsonl, row 2, field `answer` is missing \(the columns are: question\)",
        ),
        (_lines([{"frage": "1", "answer": "2"}]), r"train\.jsonl, row 1, field `Question` is missing"),
        (_lines([{"question": None, "answer": "2"}]), r"train\.jsonl, row 1, field `question` is NoneType, not text"),
        (_lines([{"question": "1", "answer": 2.5}]), r"row 1, field `answer` is float, not text"),
        (_lines([{"question": "1", "answer": True}]), r"row 1, field `answer` is bool, not text"),
        (_lines([{"question": " ", "answer": "2"}]), r"row 1, field `question` is empty"),
        (_lines([{"question": "\ud83e", "answer": "2"}]), r"row 1, field `question` holds half of a surrogate pair"),
        (
            _lines([*ROWS[:1]]),
            r"train\.jsonl holds 1 rows, but the train split of someone/sums has 2: .* set data\.max_train",
        ),
    ],
)
def test_a_fault_is_named_by_file_and_row(tmp_path: Path, train: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        _read(tmp_path, train)
    assert "\n" not in str(caught.value)


def test_a_sample_of_the_data_set_is_enough_under_a_limit(tmp_path: Path) -> None:
    assert len(_read(tmp_path, _lines([*ROWS[:1]]), Data(max_train=1)).rows["train"]) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sums/train\.jsonl is missing: put a copy of someone/sums there"):
        read_mirror(SOURCE, tmp_path, Data())


def test_a_mirror_that_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.mirror is .*nowhere, which is not a folder"):
        read_mirror(SOURCE, tmp_path / "nowhere", Data())
