"""What a parquet file decodes to is counted exactly, however it is encoded, and without decoding it."""

import resource
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.repeated import repeated

from dagrpo.core.errors import UserError
from dagrpo.utils.tables import decodes_to_more, read_parquet

_texts = st.none() | st.text(max_size=20)
_rows = st.lists(
    st.fixed_dictionaries({"flat": _texts, "nested": st.none() | st.lists(st.fixed_dictionaries({"text": _texts}))}),
    min_size=1,
    max_size=30,
)
_SCHEMA = pa.schema([("flat", pa.string()), ("nested", pa.list_(pa.struct([("text", pa.large_string())])))])


def _is_counted_exactly(path: Path, columns: list[str], characters: int) -> bool:
    return decodes_to_more(path, characters - 1, columns) and not decodes_to_more(path, characters, columns)


@settings(max_examples=15, deadline=None)
@given(_rows, st.booleans(), st.integers(1, 30))
def test_every_text_counts_in_every_row(rows: list[dict[str, Any]], dictionary: bool, group: int) -> None:
    texts = [row["flat"] for row in rows] + [item["text"] for row in rows for item in row["nested"] or []]
    expected = sum(len((text or "").encode()) for text in texts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        table = pa.Table.from_pylist([row for row in rows for _ in range(50)], _SCHEMA)
        pq.write_table(table, path, use_dictionary=dictionary, row_group_size=group * 10)
        assert decodes_to_more(path, 50 * expected - 1, ["flat", "nested"])
        assert not decodes_to_more(path, 50 * expected + 10**6, ["flat", "nested"])


def test_a_dictionary_that_a_writer_gave_up_is_counted_too(tmp_path: Path) -> None:
    rows = [{"flat": f"{row:0100d}", "nested": [{"text": f"{row:0200d}"}]} for row in range(12_000)]
    table = pa.Table.from_pylist(rows, _SCHEMA)
    pq.write_table(table, tmp_path / "a", dictionary_pagesize_limit=50_000, data_page_size=20_000, row_group_size=7_000)
    assert decodes_to_more(tmp_path / "a", 12_000 * 300 - 1, ["flat", "nested"])
    assert not decodes_to_more(tmp_path / "a", 12_000 * 330, ["flat", "nested"])


def test_other_columns_do_not_count(tmp_path: Path) -> None:
    repeated(tmp_path / "a", {"a": "x" * 10, "ab": "x" * 1_000_000}, rows=1000)
    assert _is_counted_exactly(tmp_path / "a", ["a"], 10_000)


@pytest.mark.parametrize("rows", [20_000, 2_000_000])
def test_counting_takes_no_memory_of_decoding(tmp_path: Path, rows: int) -> None:
    repeated(tmp_path / "a", {"a": "x" * 1_000_000}, rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert decodes_to_more(tmp_path / "a", 16 << 30, ["a"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def _with_page_of(content: bytes, start: int, claimed: int) -> bytes:
    """Have the header of the page that starts there claim so many bytes before compression, in as many bytes of header.

    Thrift's compact form: a byte for the first field and its value, a byte for the second, then its value, as zigzag and in
    groups of 7 bits.
    """
    assert content[start : start + 4 : 2] == b"\x15\x15"
    end = start + 3
    while content[end] & 0x80:
        end += 1
    groups = [2 * claimed >> 7 * place & 0x7F for place in range(end + 1 - start - 3)]
    assert 2 * claimed < 1 << 7 * len(groups)
    header = bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])
    return content[: start + 3] + header + content[end + 1 :]


@pytest.mark.parametrize(
    ("codec", "claimed"), [("zstd", 100), ("zstd", 10_000_000), ("snappy", 100), ("gzip", 100), ("lz4", 100)]
)
def test_a_page_that_holds_more_than_its_header_says_is_refused(codec: str, claimed: int, tmp_path: Path) -> None:
    table = pa.table({"a": ["x" * 1000] * 20_000})  # 20 MB in one page
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, compression=codec, use_dictionary=False, data_page_size=1 << 30, write_statistics=False)
    start = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    path.write_bytes(_with_page_of(path.read_bytes(), start, claimed))
    with pytest.raises(UserError, match="is not a readable parquet file"):
        read_parquet(path)
    with pytest.raises((pa.ArrowException, OSError)):
        decodes_to_more(path, 1 << 30, ["a"])
