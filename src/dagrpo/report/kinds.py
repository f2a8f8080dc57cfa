"""Kinds of problems, from a split's field `ability` or `data_source`.

Looked up in the splits by the problem's row, because no table of attempts has the kind.
"""

from collections.abc import Sequence
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.core.escape import visible
from dagrpo.report.pictures import AGAIN, split_name
from dagrpo.utils.tables import read_parquet

FIELDS = ("ability", "data_source")  # of the row contract; the first that distinguishes problems is used
LONGEST_NAME = 60  # characters of a kind's name on the page


class Kinds:
    """The kinds of the problems of some splits."""

    def __init__(self, splits: Sequence[Path]) -> None:
        """Index the splits: `<task>/test.parquet`, and the training split under the name TRAINING."""
        self._splits = {split_name(path): path for path in splits}
        self._read: dict[tuple[str, str], Sequence[str]] = {}

    def of(self, split: str, problems: Sequence[int]) -> list[str] | None:
        """Return the kind of each problem; None if all are of one kind, or the split is not known.

        Raises UserError if the split has no such row.
        """
        if split not in self._splits or not problems:
            return None
        for field in FIELDS:
            values = self._column(split, field)
            if not 0 <= min(problems) <= max(problems) < len(values):
                raise UserError(
                    f"{self._splits[split]} has no row {max(problems)}, of which there are scores: {AGAIN}."
                )
            kinds = [visible(values[problem], LONGEST_NAME) for problem in problems]
            if len(set(kinds)) > 1:
                return kinds
        return None

    def _column(self, split: str, field: str) -> Sequence[str]:
        """Read one column of a split, cached. Raises UserError if the column is missing."""
        if (split, field) not in self._read:
            path = self._splits[split]
            table = read_parquet(path, columns=[field])
            if field not in table.column_names:
                raise UserError(f"{path}: column `{field}` is missing: {AGAIN}.")
            self._read[split, field] = [str(value) for value in table.column(field).to_pylist()]
        return self._read[split, field]
