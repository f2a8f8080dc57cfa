"""A BM25 index (Robertson & Zaragoza 2009) over the passages of a parquet file.

By bm25s, with the same answers every time. A word is a run of letters and digits, in any case; words of the title count
as well. Passages that share no word with the query are not found. No stemming and no synonyms; the index is in memory.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dagrpo.core.errors import UserError
from dagrpo.core.escape import sentence
from dagrpo.tools.retrieval import Passage
from dagrpo.utils.tables import naming_parquet

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Table

COLUMNS = ("title", "text")
MOST_BYTES = 4 << 30  # of titles and texts
_WORD = re.compile(r"\w+")
_DECIMALS = 4  # of a score: the last bits of a logarithm, which differ between machines, decide no order


class Index:
    """Passages that can be searched, from any thread."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        from bm25s import BM25
        from bm25s.tokenization import Tokenized

        self.passages = tuple(passages)
        # Our own numbers for words: bm25s takes them from the order of a set, which changes from one process to the next.
        self._numbers: dict[str, int] = {}
        ids = [self._numbered(f"{passage.title} {passage.text}") for passage in passages]
        self._bm25 = None
        if self._numbers:
            self._bm25 = BM25(backend="numpy", csc_backend="numpy")
            self._bm25.index(Tokenized(ids=ids, vocab=self._numbers), show_progress=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the index of a parquet file with the columns title and text. Raises UserError for any other file."""
        table = _read(path)
        for name in COLUMNS:
            _require_text(path, name, table[name])
        pairs = zip(*(table[name].to_pylist() for name in COLUMNS), strict=True)
        return cls([Passage(title=title or "", text=text or "") for title, text in pairs])

    def search(self, query: str, most: int) -> list[tuple[int, float]]:
        """Return rows and scores of the passages that share a word with the query: best first, equal ones in file order."""
        import numpy as np

        known = {word: None for word in _words(query) if word in self._numbers}
        if self._bm25 is None or not known:
            return []
        scores = np.round(self._bm25.get_scores(list(known)), _DECIMALS)
        matching = np.flatnonzero(scores > 0)
        best = matching[np.argsort(-scores[matching], kind="stable")[:most]]
        return [(int(row), round(float(scores[row]), _DECIMALS)) for row in best]

    def _numbered(self, text: str) -> list[int]:
        return [self._numbers.setdefault(word, len(self._numbers)) for word in _words(text)]


def _read(path: Path) -> "Table":
    """Return the two columns. Raises UserError, before reading them, if they do not fit into memory."""
    import pyarrow.parquet as pq

    from dagrpo.utils.tables import decodes_to_more

    with naming_parquet(path, "give a parquet file with the columns title and text"):
        _require_columns(path, pq.read_metadata(path).num_rows, pq.read_schema(path).names)
        if decodes_to_more(path, MOST_BYTES, COLUMNS):
            raise UserError(
                f"{path} has more than {MOST_BYTES >> 30} GiB of titles and texts: leave passages out, or name a server that "
                "searches them by rollout.tools.search.url."
            )
        return pq.read_table(path, columns=list(COLUMNS))


def _require_columns(path: Path, rows: int, names: Sequence[str]) -> None:
    if not rows or any(names.count(name) != 1 for name in COLUMNS):
        fault = f"{path} has {rows} rows with the columns {', '.join(names)}"
        raise UserError(sentence(f"{fault}: a corpus has at least one row, and the columns title and text."))


def _require_text(path: Path, name: str, column: "ChunkedArray") -> None:
    import pyarrow as pa
    import pyarrow.types as types

    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        raise UserError(f"{path}: its column {name} is of type {column.type}; make it text (pyarrow's string).")
    try:
        column.validate(full=True)
    except pa.ArrowException:
        raise UserError(f"{path}: its column {name} holds what is not UTF-8: write the file again.") from None


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
