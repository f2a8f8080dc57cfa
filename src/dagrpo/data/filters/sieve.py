"""The input of every filter: remaining problems, and dropped ones with reasons."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dagrpo.core.types import Row

SCHEMA = pa.schema(
    [
        pa.field("split", pa.string(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("question", pa.string(), nullable=False),
        pa.field("ground_truth", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A problem that a filter dropped."""

    row: Row
    reason: str  # one of few, to be counted
    detail: str  # about this one


class Sieve:
    """Remaining and dropped problems, on their way through the filters.

    A filter calls `drop` for every split it looks at, so that a reason without problems is recorded as 0.
    """

    def __init__(self, splits: Mapping[str, Sequence[Row]]) -> None:
        self.splits = {split: list(splits.get(split, ())) for split in dict.fromkeys(["train", "test", *splits])}
        self.dropped: list[Dropped] = []
        self.counts: dict[str, int] = {}  # "split: reason" -> problems, in the order of the gates

    def drop(self, split: str, reason: str, fault: Callable[[Row], str | None]) -> None:
        """Drop from a split every problem for which `fault` returns a text; called once for each, in their order."""
        remaining, before = [], len(self.dropped)
        for row in self.splits[split]:
            detail = fault(row)
            if detail is None:
                remaining.append(row)
            else:
                self.dropped.append(Dropped(row=row, reason=reason, detail=detail))
        self.splits[split] = remaining
        key = f"{split}: {reason}"
        self.counts[key] = self.counts.get(key, 0) + len(self.dropped) - before

    def rows(self) -> Iterator[Row]:
        """Yield every remaining problem, split by split."""
        return (row for rows in self.splits.values() for row in rows)


def dropped_table(dropped: Sequence[Dropped]) -> pa.Table:
    """Return the dropped problems as the rows of dropped.parquet, in the order in which they were dropped."""
    rows = [
        {
            "split": item.row.split,
            "index": item.row.index,
            "question": item.row.question,
            "ground_truth": item.row.ground_truth,
            "reason": item.reason,
            "detail": item.detail,
        }
        for item in dropped
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)
