"""What a tool may search in a task: data/<experiment>/<task>/passages.parquet, a table without rows where there is nothing.

Not here: how it is searched.
"""

from collections.abc import Sequence
from dataclasses import asdict

import pyarrow as pa

from dagrpo.search import Passage

PASSAGES = "passages.parquet"
SCHEMA = pa.schema([pa.field("title", pa.string(), nullable=False), pa.field("text", pa.string(), nullable=False)])


def passages_table(passages: Sequence[Passage]) -> pa.Table:
    """Passages as the rows of passages.parquet, in their order."""
    return pa.Table.from_pylist([asdict(passage) for passage in passages], schema=SCHEMA)
