"""Parquet files: written atomically and deterministically, read with readable errors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dagrpo.core.errors import UserError
from dagrpo.utils.files import atomic_file

MOST_ROWS = 1 << 20  # of a row group


def write_parquet(path: Path, table: pa.Table, group_bytes: int | None = None) -> None:
    """Write a table so that equal rows give equal bytes (zstd, one fixed format version, no pandas metadata).

    group_bytes: the size of a row group in Arrow's memory, with as many rows in each; None: a million rows.
    """
    rows = MOST_ROWS
    if group_bytes is not None and table.nbytes > group_bytes:
        rows = max(1, table.num_rows * group_bytes // table.nbytes)
    with atomic_file(path) as temporary:
        pq.write_table(table, temporary, row_group_size=rows, compression="zstd", version="2.6", store_schema=True)


def read_parquet(
    path: Path, remedy: str = "run the stage that makes it again", columns: Sequence[str] | None = None
) -> pa.Table:
    """Read a parquet file. Raises UserError naming it, and the remedy, if it is missing, empty or damaged.

    `columns`: those to read, of which missing ones are left out; None: all.
    """
    with naming_parquet(path, remedy):
        if columns is None:
            return pq.read_table(path)
        with pq.ParquetFile(path) as file:
            return file.read([name for name in file.schema_arrow.names if name in columns])


@contextmanager
def naming_parquet(path: Path, remedy: str) -> Iterator[None]:
    """Turn errors while a parquet file is read into a UserError naming it, and the remedy: missing, empty or damaged."""
    if not path.is_file():
        raise UserError(f"{path} is missing, or no file: {remedy}.")
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: the name of a column
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} is not a readable parquet file ({first_line}): {remedy}.") from None
