"""Table of pass rates, and stage `difficulty` without samples.

No module of a model is imported here.
"""

import shutil
from pathlib import Path

import pyarrow as pa

from dagrpo.utils.files import atomic_file
from dagrpo.utils.tables import write_parquet

PASS_RATES = pa.schema(
    [
        pa.field("question_sha256", pa.string(), nullable=False),
        pa.field("pass_rate", pa.float64()),  # null: no completion could be verified
        pa.field("right", pa.int32(), nullable=False),
        pa.field("unverifiable", pa.int32(), nullable=False),
        pa.field("samples", pa.int32(), nullable=False),
    ]
)


def pass_through(split: Path, rated: Path, pass_rates: Path) -> None:
    """Copy the split unchanged, and write an empty table of pass rates."""
    with atomic_file(rated) as temporary:
        shutil.copyfile(split, temporary)
    write_parquet(pass_rates, PASS_RATES.empty_table())
