"""Tables of rollouts on disk, read by rows and columns."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dagrpo.rollout.build_table import rounded
from dagrpo.rollout.config import KeepRollouts
from dagrpo.rollout.table import AGAIN, REWARDS, ROUNDED
from dagrpo.utils.tables import naming_parquet, write_parquet

LOGPROB_BITS = 5  # significant bits of rounded logprobs: 3%
KEPT = "kept"
TEXTS = ("prompt", "completion", "messages")
REPLAYED = ("logprob_differences", "teacher_logprobs", "sampling_support", "token_advantages")  # read by replays alone
LOGPROBS = "rollout_logprobs"
LONG = (*TEXTS, "prompt_ids", "completion_ids", LOGPROBS, "calls", "samples", *REPLAYED)


def is_kept(every: int, step: int) -> bool:
    """Return True if `step` (from 1) is kept in full, with `every` as runtime.keep_rollouts."""
    return step == 1 or step % every == 0


def kept_rollouts(table: pa.Table, keep: KeepRollouts, step: int) -> pa.Table:
    """Return what `keep` leaves of the table of `step` (from 1): every row and column, but nothing in LONG ones of some rows."""
    if keep == "all" or (isinstance(keep, int) and is_kept(keep, step)):
        return table
    if keep == "rounded":
        return _rounded(table)
    chosen = best_and_worst(table) if keep == "best_and_worst" else np.zeros(table.num_rows, np.bool_)
    return _rewards_alone(table, pa.array(~chosen))


def best_and_worst(table: pa.Table) -> NDArray[np.bool_]:
    """Return True at the first highest and the first lowest reward of each prompt that was not discarded. [rows]"""
    problems, samples = table["problem_index"].to_numpy(), table["sample_index"].to_numpy()
    rewards, discarded = table["reward"].to_numpy(), table["discarded"].to_numpy()
    chosen = np.zeros(table.num_rows, np.bool_)
    # A prompt may be sampled twice in a row, and one of its groups discarded: samples are numbered from 0 in each.
    begins = (np.diff(problems) != 0) | (np.diff(samples) <= 0)
    for rows in np.split(np.arange(table.num_rows), np.flatnonzero(begins) + 1):
        if len(rows) and not discarded[rows[0]]:
            chosen[rows[[rewards[rows].argmax(), rewards[rows].argmin()]]] = True
    return chosen


def _rewards_alone(table: pa.Table, places: pa.Array) -> pa.Table:
    """Return the table without texts, tokens and logprobs of some rows. places: [rows], True where they are left out."""
    for name in LONG:
        empty: Any = "[]" if name == "messages" else "" if name in TEXTS else []
        column = pc.if_else(places, pa.scalar(empty, table.schema.field(name).type), table[name])
        table = _with(table, name, column)
    return _with(table, KEPT, pc.if_else(places, REWARDS, table[KEPT]))


def _rounded(table: pa.Table) -> pa.Table:
    """Return the table with rounded logprobs and without what replays alone read."""
    everywhere = pa.array(np.ones(table.num_rows, np.bool_))
    for name in REPLAYED:
        table = _with(table, name, pc.if_else(everywhere, pa.scalar([], table.schema.field(name).type), table[name]))
    exact = table[LOGPROBS].combine_chunks()
    values = pa.array(rounded(exact.values.to_numpy(), LOGPROB_BITS))
    table = _with(table, LOGPROBS, pa.ListArray.from_arrays(exact.offsets, values))
    return _with(table, KEPT, pa.array([ROUNDED] * table.num_rows))


def _with(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), column)


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
