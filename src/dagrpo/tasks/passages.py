"""What a tool may search in a task: data/<experiment>/<task>/passages.parquet, a table without rows where there is nothing.

Not here: how it is searched.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

PASSAGES = "passages.parquet"
SCHEMA = pa.schema([pa.field("title", pa.string(), nullable=False), pa.field("text", pa.string(), nullable=False)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A short text under a title."""

    title: str
    text: str


def passages_table(passages: Sequence[Passage]) -> pa.Table:
    """Passages as the rows of passages.parquet, in their order."""
    return pa.Table.from_pylist([asdict(passage) for passage in passages], schema=SCHEMA)
