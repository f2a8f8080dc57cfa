"""AIME rows: the prompt asks for a box, and the ground truth is an integer without padding."""

from pathlib import Path

import pytest

from dagrpo.data.config import Data
from dagrpo.data.datasets.aime import to_row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.task import get_task


def _row(answer: str) -> RawRow:
    return RawRow(file="aime/aime_2024.jsonl", number=8, fields={"problem": "Find $x$.", "answer": answer})


@pytest.mark.parametrize(
    ("answer", "truth"), [("025", "25"), ("0", "0"), ("000", "0"), ("999", "999"), (" 33\n", "33")]
)
def test_the_ground_truth_is_an_integer_without_padding(answer: str, truth: str) -> None:
    problem = to_row(_row(answer))
    assert problem.ground_truth == truth
    assert problem.answer == f"\\boxed{{{truth}}}"


@pytest.mark.parametrize("answer", ["1000", "-1", "12.5", "x", "\uff11\uff12"])
def test_an_answer_that_is_no_integer_from_0_to_999_names_the_file_and_the_row(answer: str) -> None:
    with pytest.raises(
        ValueError, match=r"aime/aime_2024\.jsonl, row 8, field `answer` is '.*', not an integer from 0 to 999"
    ):
        to_row(_row(answer))


@pytest.mark.parametrize(
    ("name", "first", "padded"),
    [("aime_2024", "204", "25"), ("aime_2025", "70", "149"), ("aime_2024_tool", "204", "25")],
)
def test_there_are_thirty_problems_and_nothing_to_train_on(
    data_folder: Path, name: str, first: str, padded: str
) -> None:
    problems = get_task(name).load(Data(mirror=str(data_folder)))
    assert {split: len(rows) for split, rows in problems.splits.items()} == {"train": 0, "test": 30}
    assert problems.expected == problems.read == {"train": 0, "test": 30}
    truths = [row.ground_truth for row in problems.splits["test"]]
    assert truths[0] == first
    assert padded in truths
    assert all(0 <= int(truth) <= 999 and truth == str(int(truth)) for truth in truths)
    assert not problems.held_out
