"""Parquet files: written atomically and deterministically, read with readable errors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagrpo.core.errors import UserError
from dagrpo.utils.files import atomic_file

BYTES_SPLIT = (pa.int32(), pa.float32())
MOST_ROWS = 1 << 20  # of a row group


def write_parquet(path: Path, table: pa.Table, group_bytes: int | None = None) -> None:
    """Write a table so that equal rows give equal bytes (zstd, one fixed format version, no pandas metadata).

    Lists of int32 and float32, such as token ids and logprobs, are split into their first bytes, second bytes and so on, which
    compresses them without loss. group_bytes: the size of a row group in Arrow's memory, with as many rows in each; None: a million
    rows.
    """
    rows = MOST_ROWS
    if group_bytes is not None and table.nbytes > group_bytes:
        rows = max(1, table.num_rows * group_bytes // table.nbytes)
    leaves = [leaf for field in table.schema for leaf in _leaves(field.name, field.type, in_list=False)]
    split = [name for name, is_split in leaves if is_split]
    with atomic_file(path) as temporary:
        pq.write_table(
            table,
            temporary,
            row_group_size=rows,
            compression="zstd",
            version="2.6",
            store_schema=True,
            use_dictionary=[name for name, is_split in leaves if not is_split],
            column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT") or None,
        )


def _leaves(name: str, kind: pa.DataType, *, in_list: bool) -> Iterator[tuple[str, bool]]:
    """Yield the path of each parquet column of a field, and whether its bytes are split."""
    if pa.types.is_map(kind):
        yield from _leaves(f"{name}.key_value.key", kind.key_type, in_list=True)
        yield from _leaves(f"{name}.key_value.value", kind.item_type, in_list=True)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{name}.list.element", kind.value_type, in_list=True)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{name}.{field.name}", field.type, in_list=in_list)
    else:
        yield name, in_list and kind in BYTES_SPLIT


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


ROWS = 4096  # at a time
BUFFER_BYTES = 1 << 20  # of a column, which would otherwise be read whole
INDEX_BYTES = 4  # of a value of which only its place in the dictionary is read


def decodes_to_more(path: Path, most: int, columns: Sequence[str]) -> bool:
    """Return True if these columns have more than `most` bytes. Raises ArrowException or OSError if the file cannot be read."""
    with pq.ParquetFile(path) as file:
        leaves = [file.schema.column(number) for number in range(len(file.metadata.schema))]
        numbers = [
            number
            for number, leaf in enumerate(leaves)
            if any(f"{leaf.path}.".startswith(f"{name}.") for name in columns)
        ]
        texts = [leaves[number].path for number in numbers if leaves[number].physical_type == "BYTE_ARRAY"]
        if _least_bytes(file.metadata, numbers) > most:
            return True
    decoded = 0
    with pq.ParquetFile(path, read_dictionary=texts, buffer_size=BUFFER_BYTES) as file:
        for group in range(file.num_row_groups):  # one at a time: nested texts of two dictionaries make no batch
            for batch in file.iter_batches(ROWS, row_groups=[group], columns=list(columns)):
                decoded += sum(map(_decoded_bytes, batch.columns))
                if decoded > most:
                    return True
    return False


def _least_bytes(footer: pq.FileMetaData, columns: Sequence[int]) -> int:
    """Return the bytes of the texts, each read once, and of their indices, as the footer states them."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in columns]
    return sum(max(chunk.total_uncompressed_size, INDEX_BYTES * chunk.num_values) for chunk in chunks)


def _decoded_bytes(values: pa.Array) -> int:
    """Return the bytes of decoded values; for nested values those of the innermost ones."""
    if isinstance(values, pa.DictionaryArray):
        return pc.sum(pc.binary_length(values.dictionary).take(values.indices)).as_py() or 0
    if isinstance(values, pa.StructArray):
        return sum(map(_decoded_bytes, values.flatten()))
    if isinstance(values, pa.ListArray | pa.LargeListArray | pa.MapArray | pa.FixedSizeListArray):
        return _decoded_bytes(values.flatten())
    return int(values.nbytes)
