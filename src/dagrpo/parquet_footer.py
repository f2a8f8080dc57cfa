"""What a parquet file's footer says of its columns, read by a process of its own.

Arrow checks what a footer says of a column when it is asked for it, and ends the whole process over one that is damaged.
"""

import atexit
import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dagrpo.line_process import LineProcess

SECONDS = 60.0
_process = LineProcess("dagrpo.parquet_footer", [], {})
_lock = threading.Lock()
atexit.register(_process.kill)


def column_chunks(path: Path, columns: Sequence[int]) -> list[tuple[int, int]]:
    """(bytes before compression, values) of each part of these columns. ArrowException: the footer is damaged."""
    request = json.dumps({"path": str(path.resolve()), "columns": list(columns)}).encode() + b"\n"
    with _lock:
        if _process.start() and _process.exchange(b"", SECONDS) is None:
            _process.kill()
            raise RuntimeError(
                "the process dagrpo.parquet_footer did not start: run python -m dagrpo.parquet_footer to see why."
            )
        line = _process.exchange(request, SECONDS)
        if line is None:
            _process.kill()
            raise pa.ArrowInvalid("its footer is damaged")
    return [(size, values) for size, values in json.loads(line)]


def main() -> None:
    """Answer each line, after one that says that this is ready: a file and columns, with sizes and numbers of values."""
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        footer = pq.read_metadata(request["path"])
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        chunks = [group.column(number) for group in groups for number in request["columns"]]
        print(json.dumps([(chunk.total_uncompressed_size, chunk.num_values) for chunk in chunks]), flush=True)


if __name__ == "__main__":
    main()
