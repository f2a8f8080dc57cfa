"""Times of a run beside its log, which belong to that run alone."""

from pathlib import Path

import pyarrow as pa
import pytest

from dagrpo.utils.run_info import read_times, step_seconds, times_of, write_times
from dagrpo.utils.tables import write_parquet

CURVE = [
    {"reward/mean": 0.5, "timing/update_seconds": 2.0, "timing/rollout_seconds": 1.0, "timing/tokens_per_second": 9.0}
]


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    write_parquet(tmp_path / "metrics.parquet", pa.table({"step": [1]}))
    return tmp_path / "metrics.parquet"


def test_they_are_read_as_they_were_written(tmp_path: Path, metrics: Path) -> None:
    times = times_of(CURVE)
    write_times(tmp_path, metrics, times)
    assert read_times(tmp_path, metrics) == times
    assert step_seconds(times[0]) == 3.0


def test_those_of_another_run_are_not_taken_for_ones_own(tmp_path: Path, metrics: Path) -> None:
    write_times(tmp_path, metrics, times_of(CURVE))
    write_parquet(metrics, pa.table({"step": [2]}))
    assert read_times(tmp_path, metrics) is None
