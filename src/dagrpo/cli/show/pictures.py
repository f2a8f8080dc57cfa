"""Location of a problem's pictures, in the rows of a split.

A terminal shows no pictures, and no table of attempts holds them.
"""

import os
from functools import lru_cache
from pathlib import Path

import pyarrow.compute as pc

from dagrpo.cli.show.place import Place
from dagrpo.utils.tables import read_parquet

IMAGES = "images"


def pictures(place: Place, task: str, problem: int) -> str | None:
    """Return a problem's number of pictures, and their file and row; None without pictures, or if its split is missing."""
    split = _split(place, task)
    counts = () if split is None else _counts(split)
    count = counts[problem] if 0 <= problem < len(counts) else 0
    return f"{count}, in column {IMAGES} of {split}, row {problem} (from 0)" if count else None


def _split(place: Place, task: str) -> Path | None:
    """Return the file whose rows the problems are."""
    if place.run is None:
        return None
    run = place.run.absolute()  # a relative path may have too few parents
    if run.parent.name != "runs" or len(run.parents) < 4:
        return None
    results = run.parents[1]
    test = results.parents[1] / "data" / results.name / task / "test.parquet"
    split = test if place.attempts.name == "completions.parquet" else results / "difficulty/train.parquet"
    if not split.is_file():
        return None
    return split if place.run.is_absolute() else Path(os.path.relpath(split))


@lru_cache(maxsize=8)
def _counts(split: Path) -> tuple[int, ...]:
    """Count the pictures of every row. Raises UserError if the file is damaged."""
    table = read_parquet(split, columns=[IMAGES])
    return tuple(pc.list_value_length(table[IMAGES]).to_pylist()) if IMAGES in table.column_names else ()
