"""DAPO rows: the data set's own prompt, the problem without its wrapper, exact ground truths, 17,917 of them."""

from pathlib import Path

import pytest

from dagrpo.data.config import Data
from dagrpo.data.datasets.dapo import CLOSING, OPENING, to_row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.task import get_task


def _row(prompt: str, ground_truth: object = "34") -> RawRow:
    columns = {"prompt": "prompt.0.content"}
    fields = {"prompt": prompt, "ground_truth": ground_truth, "id": "1"}
    return RawRow(file="dapo.parquet", number=5, fields=fields, columns=columns)


def test_the_prompt_is_the_data_sets_own_and_the_question_the_problem_alone() -> None:
    problem = to_row(_row(f"{OPENING}Find $x$.\n\nHint: none.{CLOSING}"))
    assert problem.prompt == ({"role": "user", "content": f"{OPENING}Find $x$.\n\nHint: none.{CLOSING}"},)
    assert problem.question == "Find $x$.\n\nHint: none."
    assert (problem.ground_truth, problem.answer) == ("34", "Answer: 34")


@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        ("Find $x$.", "does not ask for the answer in the data set's own words"),
        (f"{OPENING}Find $x$.", "does not ask for the answer"),
        (f"{OPENING} {CLOSING}", "holds no problem"),
    ],
)
def test_another_prompt_names_the_file_the_row_and_the_column(prompt: str, fault: str) -> None:
    with pytest.raises(ValueError, match=rf"dapo\.parquet, row 5, field `prompt\.0\.content` {fault}"):
        to_row(_row(prompt))


def test_the_real_rows_are_complete_and_exact(data_folder: Path) -> None:
    problems = get_task("dapo").load(Data(mirror=str(data_folder)))
    train = problems.splits["train"]
    assert len(train) == problems.read["train"] == problems.expected["train"] == 17_917
    assert len({row.question for row in train}) == 17_290
    assert sum(row.ground_truth.startswith("-") for row in train) == 366
    assert max((row.ground_truth for row in train), key=int) == "22099999999999998951424"
    assert (problems.held_out, len(problems.splits["test"])) == (True, 0)
    assert {(row.verifier, row.tools) for row in train} == {("math_dapo", ())}
