r"""MATH and MATH-500 rows: the ground truth is what stands in the last `\boxed{...}`, or apart."""

import json
from pathlib import Path

import pytest

from dagrpo.data.config import Data
from dagrpo.data.datasets.math import INSTRUCTION, math_problem
from dagrpo.data.raw_row import RawRow
from dagrpo.data.task import get_task


def _row(solution: str) -> RawRow:
    return RawRow(file="math/train.jsonl", number=3, fields={"problem": "Find $x$.", "solution": solution})


@pytest.mark.parametrize(
    ("solution", "truth"),
    [
        ("So $x = \\boxed{2}$.", "2"),
        ("First \\boxed{1}, then \\boxed{\\frac{3}{4}}.", "\\frac{3}{4}"),
        ("It is \\boxed{\\left\\{1, \\sqrt{2}\\right\\}}.", "\\left\\{1, \\sqrt{2}\\right\\}"),
        ("Hence $\\fbox{\\text{Tuesday}}$.", "\\text{Tuesday}"),
        ("Thus $\\boxed 7$.", "7"),
    ],
)
def test_the_ground_truth_stands_in_the_last_box(solution: str, truth: str) -> None:
    problem = math_problem(_row(solution))
    assert problem.ground_truth == truth
    assert (problem.question, problem.answer) == ("Find $x$.", solution)
    assert problem.prompt == ({"role": "user", "content": f"Find $x$.\n\n{INSTRUCTION}"},)


@pytest.mark.parametrize("solution", ["It is 2.", "\\boxed{}", "\\boxed{2"])
def test_a_solution_without_a_box_names_the_file_and_the_row(solution: str) -> None:
    with pytest.raises(ValueError, match=r"math/train\.jsonl, row 3, field `solution` has no \\boxed"):
        math_problem(_row(solution))


def test_math_500_takes_the_answer_from_its_own_column(tmp_path: Path) -> None:
    (tmp_path / "math_500").mkdir()
    row = {"problem": "Find $r$.", "solution": "See \\boxed{3}.", "answer": "\\left( 3, \\frac{\\pi}{2} \\right)"}
    (tmp_path / "math_500/test.jsonl").write_text(json.dumps(row | {"subject": "Precalculus", "level": 2}) + "\n")
    problems = get_task("math_500").load(Data(mirror=str(tmp_path), max_test=1))
    (task_row,) = problems.splits["test"]
    assert (task_row.ground_truth, task_row.answer) == ("\\left( 3, \\frac{\\pi}{2} \\right)", "See \\boxed{3}.")
    assert problems.expected == {"train": 0, "test": 500}
    assert task_row.verifier == "math"


def test_math_is_read_from_both_splits(tmp_path: Path) -> None:
    (tmp_path / "math").mkdir()
    row = {"problem": "Find $x$.", "level": "Level 5", "type": "Algebra", "solution": "\\boxed{2}"}
    for split in ("train", "test"):
        (tmp_path / f"math/{split}.jsonl").write_text(json.dumps(row) + "\n")
    problems = get_task("math").load(Data(mirror=str(tmp_path), max_train=1, max_test=1))
    assert problems.expected == {"train": 7500, "test": 5000}
    assert [problems.splits[split][0].ground_truth for split in ("train", "test")] == ["2", "2"]
    assert not problems.held_out
