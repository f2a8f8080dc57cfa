"""Countdown rows: numbers and a target, and ground truths that the verifier reads."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagrpo.data.config import Data
from dagrpo.data.datasets.countdown import to_row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.task import get_task
from dagrpo_answers.verifiers.countdown import check, equal


def _row(numbers: object, target: object) -> RawRow:
    return RawRow(file="countdown/train.parquet", number=2, fields={"numbers": numbers, "target": target})


def test_the_verifier_reads_the_ground_truth() -> None:
    ground_truth = to_row(_row([44, 19, 35], 98)).ground_truth
    check(ground_truth)
    assert equal("44 + 19 + 35", ground_truth)
    assert not equal("44 + 54", ground_truth)


@pytest.mark.parametrize(
    ("numbers", "target", "fault"),
    [
        ([], 98, "`numbers` is .* not a list of integers"),
        ([1, 2.5], 98, "`numbers` is .* not a list of integers"),
        ("1, 2", 98, "`numbers` is .* not a list of integers"),
        ([1, 2], "98", "`target` is str, not an integer"),
    ],
)
def test_a_row_without_whole_numbers_names_the_file_and_the_row(numbers: object, target: object, fault: str) -> None:
    with pytest.raises(ValueError, match=rf"countdown/train\.parquet, row 2, field {fault}"):
        to_row(_row(numbers, target))


def test_the_hubs_columns_are_read(tmp_path: Path) -> None:
    (tmp_path / "countdown").mkdir()
    table = pa.table({"target": [98, 64], "nums": [[44, 19, 35], [63, 95, 96]]})
    pq.write_table(table, tmp_path / "countdown/train.parquet")
    problems = get_task("countdown").load(Data(mirror=str(tmp_path), max_train=1))
    assert [row.ground_truth for row in problems.splits["train"]] == [
        '{"numbers": [44, 19, 35], "target": 98}',
        '{"numbers": [63, 95, 96], "target": 64}',
    ]
    assert problems.held_out
    assert problems.expected == {"train": 490_364, "test": 0}
