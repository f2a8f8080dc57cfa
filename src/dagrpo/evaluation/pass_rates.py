"""The table of pass rates, and stage `difficulty` with nothing to rate.

Without anything to rate there is no model, so none is imported.
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
    """No ratings: the split as it is, and an empty table."""
    with atomic_file(rated) as temporary:
        shutil.copyfile(split, temporary)
    write_parquet(pass_rates, PASS_RATES.empty_table())
