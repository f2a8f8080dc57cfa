"""Valid raw files, damaged in any way: prepare ends with data that can be read, or with a sentence, within a second."""

import copy
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.filters.problems import character_model
from tests.data.preparing import read_dropped, read_split
from tests.faults.fuzz.inputs import fuzzed, json_values, refusal

from dagrpo.data.config import Data
from dagrpo.data.datasets.dapo import CLOSING, OPENING
from dagrpo.data.prepare import prepare
from dagrpo.utils.tables import write_parquet

Row = dict[str, Any]


def _gsm8k(number: int) -> Row:
    return {"question": f"What is {number} and 1?", "answer": f"It is\n#### {number + 1}"}


def _math(number: int) -> Row:
    return {"problem": f"Find ${number} + 1$.", "solution": f"\\boxed{{{number + 1}}}", "answer": str(number + 1)}


def _aime(number: int) -> Row:
    return {"Problem": f"Find {number} + 1.", "Answer": number + 1}


def _countdown(number: int) -> Row:
    return {"nums": [number + 1, 2, 3], "target": number + 6}


def _dapo(number: int) -> Row:
    return {
        "prompt": [{"role": "user", "content": f"{OPENING}What is {number} and 1?{CLOSING}"}],
        "reward_model": {"ground_truth": str(number + 1)},
        "extra_info": {"index": str(number)},
    }


TASKS = {
    "gsm8k": (_gsm8k, ("gsm8k/train", "gsm8k/test")),
    "math": (_math, ("math/train", "math/test")),
    "math_500": (_math, ("math_500/test",)),
    "aime_2024": (_aime, ("aime/aime_2024",)),
    "countdown": (_countdown, ("countdown/train",)),
    "dapo": (_dapo, ("dapo/dapo_math_17k",)),
}


@st.composite
def damaged_rows(draw: st.DrawFn, task: str) -> list[Any]:
    """Six rows of a task, with one to three damages."""
    make, _ = TASKS[task]
    rows: list[Any] = [make(number) for number in range(6)]
    for _ in range(draw(st.integers(1, 3))):
        place, value = draw(st.integers(0, 5)), draw(json_values)
        row = rows[place] = copy.deepcopy(rows[place])
        key = draw(st.sampled_from(sorted(make(0))))
        match draw(st.sampled_from(["replace", "replace", "inside", "delete", "row", "add", "repeat"])):
            case "row":
                rows[place] = value
            case "repeat":
                rows.append(row)
            case _ if not isinstance(row, dict) or key not in row:
                pass
            case "replace":
                row[key] = value
            case "inside":
                row[key] = [value] if isinstance(row[key], list) else {key: value}
            case "delete":
                del row[key]
            case "add":
                row[draw(st.text(max_size=5))] = value
    return rows


@st.composite
def damaged_lines(draw: st.DrawFn, task: str) -> bytes:
    """Rows as a JSONL file, now and then with bytes that are no JSON."""
    lines = [json.dumps(row).encode() for row in draw(damaged_rows(task))]
    if draw(st.booleans()):
        fragments = [
            b"\n",
            b"\x00",
            b"\xff\xfe",
            b"\xef\xbb\xbf",
            b"{",
            b"[" * 100_000,
            b"9" * 5000,
            b"NaN",
            b"\\ud800",
            b"null\n",
        ]
        content, start = b"\n".join(lines), draw(st.integers(0, 2000))
        return content[:start] + draw(st.sampled_from([*fragments, b""])) + content[start + draw(st.integers(0, 9)) :]
    return b"\n".join(draw(st.sampled_from([lines, lines, [], lines[:1]])))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return character_model(tmp_path_factory.mktemp("model") / "tiny")


def _check(task: str, mirror: Path, model: Path) -> None:
    """What prepare makes of the mirror."""
    params = Data(mirror=str(mirror), max_train=1000, max_test=1000, held_out=1, unreadable_answers="drop")
    folder = mirror / "prepared"
    if not refusal(lambda: prepare(task, folder, params, model=model, evaluate=[task])):
        for split in ("train", "test"):
            assert read_split(folder, split) or (split == "train" and len(TASKS[task][1]) == 1)
        assert all(row["reason"] for row in read_dropped(folder))


@fuzzed
@given(data=st.data(), task=st.sampled_from(sorted(TASKS)))
def test_damaged_lines_are_refused_or_prepared(
    tmp_path_factory: pytest.TempPathFactory, model: Path, data: st.DataObject, task: str
) -> None:
    make, files = TASKS[task]
    mirror = tmp_path_factory.getbasetemp() / "lines"
    valid = "\n".join(json.dumps(make(number)) for number in range(10, 16)).encode()
    for file, content in zip(files, (data.draw(damaged_lines(task)), valid), strict=False):
        (mirror / file).parent.mkdir(parents=True, exist_ok=True)
        (mirror / f"{file}.jsonl").write_bytes(content)
    _check(task, mirror, model)


def _table(rows: list[Any]) -> pa.Table | None:
    """Rows as Parquet has them; None where Arrow knows no type for them."""
    try:
        return pa.Table.from_pylist([row for row in rows if isinstance(row, dict)])
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, AttributeError, RecursionError):
        return None


def _not_utf_8(table: pa.Table) -> pa.Table:
    """The table with its first column of texts made of bytes that are none."""
    number = next((n for n, field in enumerate(table.schema) if field.type == pa.string()), None)
    if number is None or not len(table):
        return table
    offsets, content = pa.array(range(len(table) + 1), pa.int32()), b"\xff" * len(table)
    column = pa.StringArray.from_buffers(len(table), offsets.buffers()[1], pa.py_buffer(content))
    return table.set_column(number, table.schema.field(number).name, column)


@fuzzed
@given(data=st.data(), task=st.sampled_from(sorted(TASKS)))
def test_damaged_tables_are_refused_or_prepared(
    tmp_path_factory: pytest.TempPathFactory, model: Path, data: st.DataObject, task: str
) -> None:
    make, files = TASKS[task]
    mirror = tmp_path_factory.getbasetemp() / "tables"
    table = _table(data.draw(damaged_rows(task)))
    damage = data.draw(st.sampled_from(["none", "none", "bytes", "not utf-8", "twice", "empty"]))
    for file in files:
        write_parquet(mirror / f"{file}.parquet", pa.Table.from_pylist([make(number) for number in range(10, 16)]))
    path = mirror / f"{files[0]}.parquet"
    if table is not None and table.num_columns:
        table = _not_utf_8(table) if damage == "not utf-8" else table
        table = table.append_column(table.schema.field(0).name, table.column(0)) if damage == "twice" else table
        write_parquet(path, table[:0] if damage == "empty" else table)
    if damage == "bytes":
        content = bytearray(path.read_bytes())
        # Not in the footer, over which Arrow may end the process.
        footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        for _ in range(4):
            content[data.draw(st.integers(0, footer - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
    _check(task, mirror, model)
