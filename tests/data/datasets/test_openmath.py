"""OpenMathInstruct-2: one problem of many solutions, read as far as it is needed and no further."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dagrpo.data.config import Data
from dagrpo.data.reading import COPIES_BATCH_ROWS
from dagrpo.data.task import TaskRows, get_task


def _load(folder: Path, params: Data, **columns: list[str]) -> TaskRows:
    (folder / "openmath").mkdir()
    pq.write_table(pa.table(columns), folder / "openmath/train.parquet")
    return get_task("openmath").load(params.model_copy(update={"mirror": str(folder)}))


def test_the_first_solution_of_a_problem_stands_for_all(tmp_path: Path) -> None:
    problems = _load(
        tmp_path,
        Data(max_train=10, held_out=1),
        problem=["Find $x$.", "Find $y$.", "Find $x$."],
        expected_answer=["1", "\\frac{1}{2}", "1"],
        generated_solution=["Easy. \\boxed{1}", "Hm. \\boxed{\\frac{1}{2}}", "Hard. \\boxed{1}"],
    )
    train = problems.splits["train"]
    assert [(row.ground_truth, row.answer) for row in train] == [
        ("1", "Easy. \\boxed{1}"),
        ("\\frac{1}{2}", "Hm. \\boxed{\\frac{1}{2}}"),
    ]
    assert problems.read == {"train": 3, "test": 0}
    assert {(row.verifier, row.pass_rate) for row in train} == {("math", None)}


def test_reading_ends_with_the_train_and_the_held_out_problems(tmp_path: Path) -> None:
    names = [f"Find {i}." for i in range(60_000)]
    problems = _load(tmp_path, Data(max_train=5, held_out=2), problem=names, expected_answer=["1"] * 60_000)
    assert len(problems.splits["train"]) == 7
    assert problems.splits["train"][0].answer == "\\boxed{1}"
    assert problems.read["train"] == COPIES_BATCH_ROWS < 60_000  # one part of the file, and not the next
    assert problems.held_out
