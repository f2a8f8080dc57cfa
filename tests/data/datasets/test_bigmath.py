"""Big-Math rows: pass rates come along, known or not."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagrpo.data.config import Data
from dagrpo.data.task import TaskRows, get_task


def _load(folder: Path, rates: list[float | None]) -> TaskRows:
    (folder / "bigmath").mkdir()
    columns = {"problem": [f"Find {i}." for i in range(len(rates))], "answer": [" 4 "] * len(rates)}
    pq.write_table(pa.table({**columns, "llama8b_solve_rate": rates}), folder / "bigmath/train.parquet")
    return get_task("bigmath").load(Data(mirror=str(folder)))


def test_the_pass_rate_is_the_one_that_was_measured_or_unknown(tmp_path: Path) -> None:
    problems = _load(tmp_path, [0.25, None, 1.0])
    train = problems.splits["train"]
    assert [row.pass_rate for row in train] == [0.25, None, 1.0]
    assert {(row.ground_truth, row.answer, row.verifier) for row in train} == {("4", "\\boxed{4}", "math")}
    assert problems.held_out
    assert problems.expected == {"test": 0}


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_a_rate_that_is_no_share_names_the_row_and_the_column(tmp_path: Path, rate: float) -> None:
    with pytest.raises(ValueError, match=r"row 2, field `llama8b_solve_rate` is .*, not a number from 0 to 1"):
        _load(tmp_path, [0.5, rate])
