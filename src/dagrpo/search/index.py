"""An index over the passages of a parquet file: BM25 (Robertson & Zaragoza 2009) by bm25s, the same answers every time.

A word is a run of letters and digits, whatever its case; every word counts, those of the title too. Passages that share no
word with the query are not found. Not here: stemming, synonyms, and indices that are larger than memory.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dagrpo.errors import UserError
from dagrpo.files import read_parquet
from dagrpo.search import Passage

if TYPE_CHECKING:
    from pyarrow import Field

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
        """The index of a parquet file with the columns title and text. UserError when it has others, or no rows."""
        table = read_parquet(path, "give a parquet file with the columns title and text")
        if not {"title", "text"} <= set(table.column_names) or not table.num_rows:
            raise UserError(
                f"{path} has {table.num_rows} rows with the columns {', '.join(table.column_names)}: a corpus has at least one "
                "row, and the columns title and text."
            )
        for name in ("title", "text"):
            _require_text(path, table.schema.field(name))
        columns = table.select(["title", "text"]).to_pydict()
        pairs = zip(columns["title"], columns["text"], strict=True)
        return cls([Passage(title=title or "", text=text or "") for title, text in pairs])

    def search(self, query: str, most: int) -> list[tuple[int, float]]:
        """Rows of the passages that share a word with the query, and their scores: best first, equal ones in their order."""
        import numpy as np

        known = {word: None for word in _words(query) if word in self._numbers}
        if self._bm25 is None or not known:
            return []
        scores = np.round(self._bm25.get_scores(list(known)), _DECIMALS)
        found = np.flatnonzero(scores > 0)
        best = found[np.argsort(-scores[found], kind="stable")[:most]]
        return [(int(row), round(float(scores[row]), _DECIMALS)) for row in best]

    def _numbered(self, text: str) -> list[int]:
        return [self._numbers.setdefault(word, len(self._numbers)) for word in _words(text)]


def _require_text(path: Path, column: "Field") -> None:
    import pyarrow.types as types

    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        raise UserError(f"{path}: its column {column.name} is of type {column.type}; make it text (pyarrow's string).")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
