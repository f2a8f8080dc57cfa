"""The index: BM25 as the formula has it, the same order every time, and no passage too few or too empty."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.repeated import repeated
from tests.tools.retrieval.passages import PASSAGES, corpus

from dagrpo.core.errors import UserError
from dagrpo.tools.retrieval import Passage
from dagrpo.tools.retrieval.index import Index
from dagrpo.utils.tables import write_parquet


def _titles(index: Index, query: str, most: int = 10) -> list[str]:
    return [index.passages[row].title for row, _ in index.search(query, most)]


def test_what_shares_words_with_the_query_is_found_best_first(tmp_path: Path) -> None:
    index = Index.read(corpus(tmp_path / "passages.parquet"))
    assert _titles(index, "Where was Anna Belt born?")[0] == "Anna Belt"
    assert _titles(index, "in which town is the firm QUILL")[0] == "Quill & Sons"
    assert _titles(index, "Norland", most=1) == ["Torva"]
    assert len(_titles(index, "in")) == 4
    assert _titles(index, "in", most=2) == _titles(index, "in")[:2]
    empty = [Passage(title="", text="..."), Passage(title="?", text=""), Passage(title="", text="a town")]
    assert Index(empty[:2]).search("anything", 3) == []
    harrow = Index([*empty, Passage(title="Harrow", text="a town")])
    assert _titles(harrow, "harrow") == ["Harrow"], "the title counts"


def test_scores_are_those_of_the_formula() -> None:
    """Lucene's BM25: ln(1 + (N - n + .5) / (n + .5)) * f / (f + k1 * (1 - b + b * length / mean length))."""
    index = Index([Passage(title="x", text="y y"), Passage(title="z", text="z z z z")])
    idf = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    expected = idf * 2 / (2 + 1.5 * (1 - 0.75 + 0.75 * 3 / 4))
    ((row, score),) = index.search("y", 5)
    assert row == 0
    assert score == pytest.approx(expected, abs=1e-4)


def test_equal_passages_come_in_their_order() -> None:
    index = Index([Passage(title="same", text="words")] * 40)
    assert [row for row, _ in index.search("same words", 30)] == list(range(30))


@pytest.mark.parametrize("column", ["title", "text"])
def test_a_column_that_is_no_text_is_refused(tmp_path: Path, column: str) -> None:
    table = pa.table({"title": ["a"], "text": ["b"]} | {column: [{"inner": 1}]})
    write_parquet(tmp_path / "passages.parquet", table)
    with pytest.raises(UserError, match=rf"passages.parquet: its column {column} is of type struct<.*>; make it text"):
        Index.read(tmp_path / "passages.parquet")


@pytest.mark.parametrize("query", ["", " ", "?!", "zzz", "\ud800", "\x00"])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert Index(PASSAGES).search(query, 3) == []


@given(st.lists(st.text(max_size=12), min_size=1, max_size=6), st.text(max_size=20), st.integers(1, 4))
def test_any_corpus_takes_any_query(texts: list[str], query: str, most: int) -> None:
    index = Index([Passage(title="", text=text) for text in texts])
    found = index.search(query, most)
    assert len(found) <= most
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert found == index.search(query, most)


@pytest.mark.parametrize("names", [["title"], ["name", "text"], ["title", "text", "text"]])
@pytest.mark.parametrize("rows", [0, 1])
def test_a_file_that_is_no_corpus_is_refused(tmp_path: Path, names: list[str], rows: int) -> None:
    path = tmp_path / "passages.parquet"
    pq.write_table(pa.table([["a"] * rows] * len(names), names=names), path)
    with pytest.raises(UserError, match=r"passages.parquet has \d rows with the columns .*: a corpus has at least one"):
        Index.read(path)


@pytest.mark.parametrize("column", ["title", "text"])
def test_a_column_that_is_not_utf_8_is_named(tmp_path: Path, column: str) -> None:
    offsets, content = pa.array([0, 3], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe\xfd")
    columns = {"title": ["a"], "text": ["b"]} | {column: pa.StringArray.from_buffers(1, offsets, content)}
    pq.write_table(pa.table(columns), tmp_path / "passages.parquet")
    with pytest.raises(UserError, match=rf"passages.parquet: its column {column} holds what is not UTF-8: write"):
        Index.read(tmp_path / "passages.parquet")


def test_a_small_file_that_decodes_to_more_than_a_corpus_may_have_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "passages.parquet"
    repeated(path, {"title": "a", "text": "word " * 200_000}, rows=20_000)
    assert path.stat().st_size < 10_000
    monkeypatch.delattr(pq, "read_table")
    with pytest.raises(UserError, match=r"passages.parquet has more than 4 GiB of titles and texts: .*\.url"):
        Index.read(path)


_PROGRAM = """
import sys
from dagrpo.tools.retrieval import Passage
from dagrpo.tools.retrieval.index import Index
def refuse(event, arguments):
    if event.startswith("socket.") or (event == "open" and "w" in str(arguments[1])):
        raise AssertionError((event, arguments))
sys.addaudithook(refuse)
index = Index([Passage(title=t, text="a town in the land of " + t) for t in ("Harrow", "Torva", "Anna")])
print(index.search("town land of harrow anna", 3))
"""


def test_searching_opens_no_socket_writes_no_file_and_is_the_same_in_every_process(tmp_path: Path) -> None:
    told = set()
    for seed in ("1", "2"):  # of the order of sets
        environment = os.environ | {"HOME": str(tmp_path), "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        told.add(done.stdout)
    assert len(told) == 1
    assert list(tmp_path.iterdir()) == []
