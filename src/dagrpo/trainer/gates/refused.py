"""What a gate leaves behind when it refuses: a table beside the run's state, for whoever wants to look."""

from pathlib import Path

import pyarrow as pa

from dagrpo.files import write_parquet

FOLDER = "refused"  # in the folder of the run's state


def keep(state: Path, name: str, step: int, table: pa.Table) -> Path:
    """Write a table about the step numbered from 1; the file. It is written over when the run is refused there again."""
    path = state / FOLDER / f"{name}_step_{step:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(path, table)
    return path
