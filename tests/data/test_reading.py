"""Rows of JSONL and Parquet files: the same rows from either, copies removed, damage named, little memory."""

import gzip
import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pictures import picture
from tests.repeated import repeated

from dagrpo.core.errors import UserError
from dagrpo.data import reading
from dagrpo.data.reading import Reader, file_and_column, name_in_card, picture_digest
from dagrpo.data.source import Source

COLUMNS = {"prompt": ("prompt.0.content",), "truth": ("reward.truth", "truth"), "id": ("id",)}
LOAD = """
import sys
from pathlib import Path
from dagrpo.data.config import Data
from dagrpo.data.task import get_task
problems = get_task("dapo").load(Data(mirror=sys.argv[1]))
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(problems.read["train"], len(problems.splits["train"]), status["VmHWM"].split()[0])  # ru_maxrss has the parent's
"""


def _source(*copies: str) -> Source:
    return Source(
        repository="someone/sums",
        revision="0" * 40,
        hub_splits={"train": "train"},
        mirror_files={"train": "sums/train.jsonl"},
        columns=COLUMNS,
        rows={},
        copies=copies,
    )


def _row(prompt: str, truth: str = "1", identity: str = "a") -> dict[str, Any]:
    return {
        "prompt": [{"content": prompt, "role": "user"}],
        "reward": {"truth": truth, "style": "rule"},
        "id": identity,
    }


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _read(path: Path, *copies: str) -> tuple[list[tuple[int, str, str]], int]:
    reader = Reader(_source(*copies))
    rows = [(row.number, row.text("prompt"), row.text("truth")) for row in reader.rows(path, path.name)]
    return rows, reader.read


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_nested_fields_are_read_from_either_format(tmp_path: Path, suffix: str) -> None:
    path = _write(tmp_path / f"train{suffix}", [_row("x"), _row("y", "2"), _row("x")])
    assert _read(path) == ([(1, "x", "1"), (2, "y", "2"), (3, "x", "1")], 3)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_copies_agree_in_every_field_and_the_first_stays(tmp_path: Path, suffix: str) -> None:
    rows = [_row("x"), _row("x", "2"), _row("x"), _row("x", "1", "b"), _row("y"), _row("x", "2")]
    path = _write(tmp_path / f"train{suffix}", rows)
    assert _read(path, "prompt", "truth", "id") == ([(1, "x", "1"), (2, "x", "2"), (4, "x", "1"), (5, "y", "1")], 6)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("12")), min_size=1), st.integers(1, 7))
def test_copies_in_any_order_and_any_part_of_the_file_are_found(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, str]], size: int
) -> None:
    path = _write(tmp_path_factory.mktemp("copies") / "train.parquet", [_row(*pair) for pair in drawn])
    first = {pair: number for number, pair in reversed(list(enumerate(drawn, start=1)))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "COPIES_BATCH_ROWS", size)
        found, count = _read(path, "prompt", "truth", "id")
    assert found == [(number, *pair) for pair, number in sorted(first.items(), key=lambda item: item[1])]
    assert count == len(drawn)


def test_copies_are_found_across_the_files_of_a_split(tmp_path: Path) -> None:
    reader = Reader(_source("prompt"))
    for name, kept in (("one.parquet", ["x", "y"]), ("two.jsonl", ["z"])):
        path = _write(tmp_path / name, [_row("x"), _row(kept[-1])])
        assert [row.text("prompt") for row in reader.rows(path, name)] == kept
    assert reader.read == 4


def _written(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, store_schema=False)
    return buffer.getvalue()


def _without_utf8() -> pa.Table:
    offsets, content = pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")
    text = pa.StringArray.from_buffers(1, offsets, content)
    return pa.table({"prompt": [[{"content": "q"}]], "truth": text, "id": ["1"]})


PARQUET = pa.Table.from_pylist([_row(str(i)) for i in range(5000)])
TWICE = pa.table([pa.array(["1"]), pa.array(["2"])], names=["id", "id"])
NO_PARQUET = r"is not a Parquet file that can be read \(.*\): replace"
DAMAGED: dict[str, tuple[bytes, str]] = {
    "row without a field": (
        _written(pa.Table.from_pylist([_row("x"), {**_row("y"), "prompt": []}])),
        r"row 2, field `prompt\.0\.content` is missing",
    ),
    "no column": (
        _written(pa.Table.from_pylist([{"prompt": [{"content": "x"}], "id": "a", "other": 1}])),
        r"row 1, field `reward\.truth` is missing \(the columns are: prompt, id\)",
    ),
    "empty": (b"", NO_PARQUET),
    "only the magic": (b"PAR1", NO_PARQUET),
    "text": (b"no parquet at all", NO_PARQUET),
    "cut": ((whole := _written(PARQUET))[:1000] + bytes(1000) + whole[2000:], NO_PARQUET),
    "not UTF-8": (_written(_without_utf8()), r"is not a Parquet file that can be read \(.*UTF8"),
    "name of a column": (_written(pa.table({"identity": ["1"]})).replace(b"identity", b"\x80dentity"), NO_PARQUET),
    "two columns of one name": (_written(TWICE), "has two columns called `id`: rename one of them"),
}


@pytest.mark.parametrize("copies", [(), ("prompt", "truth", "id")])
@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_parquet_file_is_one_sentence_with_its_row(
    what: str, copies: tuple[str, ...], tmp_path: Path
) -> None:
    content, fault = DAMAGED[what]
    (tmp_path / "train.parquet").write_bytes(content)
    with pytest.raises(UserError, match=rf"^train\.parquet[ ,]+{fault}") as refusal:
        _read(tmp_path / "train.parquet", *copies)
    assert "\n" not in str(refusal.value)


def test_a_null_among_copies_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "train.parquet", [_row("x"), {**_row("x"), "id": None}])
    with pytest.raises(ValueError, match=r"train\.parquet, row 2, field `id` is NoneType, not text"):
        _read(path, "prompt", "truth", "id")


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("prompt\n")
    with pytest.raises(ValueError, match=r"train\.txt is neither \.jsonl, \.json, \.csv nor \.parquet: convert it"):
        _read(tmp_path / "train.txt")


@pytest.mark.nightly
def test_the_hubs_hundred_copies_of_dapo_are_read_within_a_gibibyte(data_folder: Path, tmp_path: Path) -> None:
    table = pq.read_table(data_folder / "dapo/dapo_math_17k.parquet")
    (tmp_path / "dapo").mkdir()
    with pq.ParquetWriter(tmp_path / "dapo/dapo_math_17k.parquet", table.schema) as writer:
        for _ in range(100):
            writer.write_table(table)
    command = [sys.executable, "-c", LOAD, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read, kept, kibibytes = (int(number) for number in done.stdout.split())
    assert (read, kept) == (1_791_700, 17_917)
    assert kibibytes < 1 << 20


def test_a_line_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"x" * (2 << 20))
    with pytest.raises(UserError, match=r"rows\.jsonl, line 1 has more than 1 MiB: correct the file"):
        _read(path)


def test_a_small_parquet_file_that_decodes_to_more_than_memory_holds_is_refused(tmp_path: Path) -> None:
    path = repeated(tmp_path / "rows.parquet", {"id": "x" * 1_000_000, "truth": "1", "prompt": "q"}, rows=20_000)
    assert path.stat().st_size < 10_000
    for copies in [(), ("id",)]:
        with pytest.raises(UserError, match=r"has more than 4 GiB in the columns .*id.*: split it"):
            _read(path, *copies)


def test_nulls_and_nested_texts_count_in_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, path = ("id", "truth", "prompt"), tmp_path / "nulls.parquet"
    pq.write_table(pa.table({name: pa.nulls(50_000, pa.string()) for name in names}), path)
    nested = _write(tmp_path / "rows.parquet", [_row("x" * 1000)] * 2000)
    assert len(_read(nested)[0]) == 2000
    for small, most in ((path, 50_000 * 100), (nested, 1 << 20)):
        assert small.stat().st_size < 10_000
        monkeypatch.setattr(reading, "MOST_BYTES", most)
        with pytest.raises(UserError, match=r"has more than .* GiB in the columns"):
            _read(small)


def test_a_packed_file_of_blank_lines_is_unpacked_at_its_beginning_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n" * (8 << 20))[:-9])  # the whole file cannot be unpacked
    with pytest.raises(UserError, match="is empty"):
        _read(path)


def test_a_packed_file_that_unpacks_to_more_than_memory_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(_row("x" * 1000)).encode() + b"\n") * 2000)
    monkeypatch.setattr(reading, "MOST_BYTES", 3 << 20)
    assert len(_read(path)[0]) == 2000
    monkeypatch.setattr(reading, "MOST_BYTES", 1 << 20)
    with pytest.raises(UserError, match=r"has more than 0\.000977 GiB when unpacked: unpack it to \.jsonl"):
        _read(path)


@pytest.mark.parametrize("suffix", [".json", ".csv"])
def test_a_large_file_that_is_read_at_once_is_refused(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"rows{suffix}").write_text("[" + "[]," * (1 << 20))
    monkeypatch.setattr(reading, "LARGEST_FILE", 1 << 20)
    with pytest.raises(UserError, match=r"has more than 1 MiB: convert it to \.jsonl or \.parquet"):
        _read(tmp_path / f"rows{suffix}")


RED, BLUE = picture(colour="red"), picture(colour="blue")


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A red picture and a blue one."""
    (tmp_path / "red.png").write_bytes(RED)
    (tmp_path / "blue.png").write_bytes(BLUE)
    return tmp_path


def _rows(folder: Path, *values: object) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"images": value}) + "\n" for value in values))
    return path


def test_it_is_over_names_and_bytes_in_the_order_of_the_rows(folder: Path) -> None:
    found = picture_digest(_rows(folder, "red.png", ["blue.png", {"path": "red.png"}]), "images")
    assert found.sha256 == _digest(b"red.png", RED, b"blue.png", BLUE, b"red.png", RED)
    assert found.bytes == 2 * len(RED) + len(BLUE)
    swapped = picture_digest(_rows(folder, "blue.png", ["red.png", "red.png"]), "images")
    assert swapped.sha256 != found.sha256


def test_a_renamed_picture_and_a_missing_one_are_another_digest(folder: Path) -> None:
    rows = _rows(folder, "red.png")
    whole = picture_digest(rows, "images").sha256
    (folder / "same.png").write_bytes(RED)
    assert picture_digest(_rows(folder, "same.png"), "images").sha256 != whole
    (folder / "red.png").unlink()
    missing = picture_digest(_rows(folder, "red.png"), "images")
    assert (missing.sha256 != whole, missing.bytes) == (True, 0)
    (folder / "below").mkdir()
    assert picture_digest(_rows(folder / "below", "../blue.png"), "images").bytes == 0, "out of the folder"


def test_a_picture_that_the_rows_hold_is_in_the_digest_of_their_file_alone(folder: Path) -> None:
    pq.write_table(
        pa.table({"images": [[{"bytes": RED, "path": "x.png"}, {"bytes": None, "path": "blue.png"}]]}),
        folder / "rows.parquet",
    )
    found = picture_digest(folder / "rows.parquet", "images")
    assert (found.sha256, found.bytes) == (_digest(b"blue.png", BLUE), len(BLUE))


def test_a_name_in_a_card_leads_back_to_file_and_column() -> None:
    assert file_and_column(name_in_card("geo3k/train.jsonl", "images")) == ("geo3k/train.jsonl", "images")
    assert file_and_column(name_in_card("odd#name.jsonl", "images")) == ("odd#name.jsonl", "images")
    assert file_and_column("geo3k/train.jsonl") is None
