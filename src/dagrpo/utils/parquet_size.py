"""Size of a parquet file's decoded content, without decoding it.

A text that its dictionary has once may stand in every row: each text is read once, and its length counted for every row. Arrow
refuses a page that holds more than its own header says. Does not detect a footer so damaged that Arrow ends the process over it, nor
pages whose headers say more than the file's footer, which Arrow decodes one after the other, up to 2 GiB each.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = 4096  # at a time
BUFFER_BYTES = 1 << 20  # of a column, which would otherwise be read whole
INDEX_BYTES = 4  # of a value of which only its place in the dictionary is read


def decodes_to_more(path: Path, most: int, columns: Sequence[str]) -> bool:
    """Return True if these columns have more than `most` bytes. Raises ArrowException or OSError if the file cannot be read."""
    with pq.ParquetFile(path) as file:
        leaves = [file.schema.column(number) for number in range(len(file.metadata.schema))]
        numbers = [number for number, leaf in enumerate(leaves) if any(_is_in(leaf.path, column) for column in columns)]
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


def _is_in(path: str, column: str) -> bool:
    return path == column or path.startswith(f"{column}.")


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
