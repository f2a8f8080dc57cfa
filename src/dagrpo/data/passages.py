"""passages.parquet: the passages that a task's search tool finds.

A task without passages has a table without rows.
"""

from collections.abc import Sequence
from dataclasses import asdict

import pyarrow as pa

from dagrpo.tools.retrieval import Passage

PASSAGES = "passages.parquet"
SCHEMA = pa.schema([pa.field("title", pa.string(), nullable=False), pa.field("text", pa.string(), nullable=False)])


def passages_table(passages: Sequence[Passage]) -> pa.Table:
    """Passages as the rows of passages.parquet, in their order."""
    return pa.Table.from_pylist([asdict(passage) for passage in passages], schema=SCHEMA)
