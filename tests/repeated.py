"""A parquet file of a few kilobytes that decodes to gigabytes: its dictionary has one text, which stands in every row."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def repeated(path: Path, texts: Mapping[str, str], rows: int) -> Path:
    indices = pa.array([0] * rows, pa.int32())
    columns = {name: pa.DictionaryArray.from_arrays(indices, [text]) for name, text in texts.items()}
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False, write_statistics=False)
    return path
