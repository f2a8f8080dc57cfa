"""Tables of rollouts on disk, read by rows and columns."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagrpo.rollout.kept_rollouts import LONG, REPLAYED
from dagrpo.rollout.table import AGAIN
from dagrpo.utils.tables import naming_parquet, write_parquet

ROW_GROUP_BYTES = 1 << 25  # in Arrow's memory, in which readers hold one at a time
ROW = "row"  # an added column: the place in the file
NUMBER_OF_CALLS = "calls.list.element.turn"  # the shortest column of the calls


def write_attempts(path: Path, table: pa.Table) -> None:
    """Write a table with columns as in TRAINING_ROLLOUTS in row groups of ROW_GROUP_BYTES."""
    write_parquet(path, table, ROW_GROUP_BYTES)


class AttemptsFile:
    """Table of attempts on disk: short columns in memory, texts and tokens of some rows when asked for."""

    def __init__(self, path: Path, remedy: str = AGAIN) -> None:
        """Read the short columns. Raises UserError naming the file if it is missing or damaged."""
        self._path = path
        self._remedy = remedy
        with naming_parquet(path, remedy), pq.ParquetFile(path) as file:
            self.columns = tuple(file.schema_arrow.names)
            names = [name for name in self.columns if name not in LONG]
            table = file.read([*names, *([NUMBER_OF_CALLS] if "calls" in self.columns else [])])
            groups = [file.metadata.row_group(place).num_rows for place in range(file.num_row_groups)]
        self._starts = np.cumsum([0, *groups])
        self.short = table.append_column(ROW, pa.array(np.arange(table.num_rows)))

    def rows(self, places: Sequence[int], without: Collection[str] = REPLAYED) -> list[dict[str, Any]]:
        """Return the rows at some places of the file, in that order, with all columns but those `without`."""
        found = {row.pop(ROW): row for table in self._tables(places, without) for row in table.to_pylist()}
        return [dict(found[place]) for place in places]

    def rows_of(
        self, short: pa.Table, positions: Sequence[int], without: Collection[str] = REPLAYED
    ) -> list[dict[str, Any]]:
        """Return the rows at some positions of a part of `short`, in that order, with all columns but those `without`."""
        return self.rows(short[ROW].to_numpy()[np.asarray(positions, np.int64)].tolist(), without)

    def _tables(self, places: Sequence[int], without: Collection[str]) -> Iterator[pa.Table]:
        """Yield the rows of each row group that has some of them, with a column ROW."""
        names = [name for name in self.columns if name not in without]
        wanted = np.unique(np.asarray(places, np.int64))
        groups = np.searchsorted(self._starts, wanted, side="right") - 1
        with naming_parquet(self._path, self._remedy), pq.ParquetFile(self._path) as file:
            for group in np.unique(groups):
                own = wanted[groups == group]
                table = file.read_row_group(int(group), names).take(pa.array(own - self._starts[group]))
                yield table.append_column(ROW, pa.array(own))
