"""Which held-out problems are taken, and what is said of the answers."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.runs import task_row

from dagrpo.data.filters.text import identity
from dagrpo.data.schema import to_table
from dagrpo.evaluation.held_out_prompts import chosen_rows, identities, split_of
from dagrpo.evaluation.held_out_table import figures, points
from dagrpo.utils.tables import write_parquet


def row(step: int, task: str, problem: int, *, right: bool, oracle: bool = False) -> dict[str, object]:
    return {
        "step": step,
        "split": "test",
        "oracle": oracle,
        "task": task,
        "problem_index": problem,
        "extracted": "3",
        "verdict": "right" if right else "wrong",
        "correct": right,
        "truncated": False,
        "completion_tokens": 2,
    }


ROWS = [
    *(row(0, "sums", problem, right=problem == 1) for problem in range(4)),
    *(row(0, "hints", problem, right=False, oracle=True) for problem in range(2)),
    *(row(5, "sums", problem, right=problem > 0) for problem in range(4)),
]


def test_the_accuracy_is_the_share_of_right_answers_of_each_step_and_task_and_an_oracle_is_named() -> None:
    assert [(point.step, point.task, point.right, point.problems) for point in points(ROWS)] == [
        (0, "sums", 1, 4),
        (0, "hints", 0, 2),
        (5, "sums", 3, 4),
    ]
    assert figures(ROWS) == {
        0: {"held_out/sums/greedy": 0.25, "held_out/hints_oracle/greedy": 0.0},
        5: {"held_out/sums/greedy": 0.75},
    }


@given(st.permutations(range(12)), st.integers(1, 15))
def test_the_problems_that_are_chosen_do_not_depend_on_their_order(order: list[int], count: int) -> None:
    chosen = chosen_rows([task_row(number) for number in order], count)
    assert [row for row, _ in chosen] == sorted(row for row, _ in chosen)
    assert all(found.index == order[row] for row, found in chosen)
    in_order = chosen_rows([task_row(number) for number in range(12)], count)
    assert {found.index for _, found in chosen} == {row for row, _ in in_order}
    assert len(chosen) == min(count, 12)


def test_a_problem_of_the_train_split_is_never_taken_however_it_is_typed(tmp_path: Path) -> None:
    shouted = replace(task_row(3), question="1+3 = ?")
    write_parquet(tmp_path / "train.parquet", to_table([shouted, task_row(5)]))
    learned = identities(tmp_path / "train.parquet")
    assert identity(task_row(3)) in learned
    chosen = chosen_rows([task_row(number) for number in range(8)], 64, learned)
    assert [row for row, _ in chosen] == [0, 1, 2, 4, 6, 7]


def test_a_validation_split_is_taken_before_the_test_split(tmp_path: Path) -> None:
    validation, test = tmp_path / "validation.parquet", tmp_path / "test.parquet"
    write_parquet(test, to_table([task_row(1)]))
    write_parquet(validation, to_table([]))
    assert split_of(validation, test) == test
    write_parquet(validation, to_table([task_row(2)]))
    assert split_of(validation, test) == validation
