"""Prompts that another trainer draws, compared with those planned, a step at a time."""

from pathlib import Path

import pytest

from dagrpo.core.errors import TransientError, UserError
from dagrpo.trainer.verl.draws import Comparison, DrawLog

SAMPLES = 2


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """Two rows a step, two steps."""
    path = tmp_path / "planned.jsonl"
    path.write_text("[3, 5]\n[8, 3]\n")
    return path


def draw(folder: Path, step: int | None, *rows: int, error: str | None = None) -> None:
    log = DrawLog(folder / "draws")
    for row in rows:
        log.add({"step": step, "index": row}, error)
    log.close()


def compared(folder: Path, planned: Path | None, finished: int = 0) -> Comparison:
    return Comparison(planned, folder / "draws", SAMPLES, finished)


def test_steps_with_all_responses_pass_in_any_order_from_several_processes(planned: Path, tmp_path: Path) -> None:
    comparison = compared(tmp_path, planned)
    draw(tmp_path, None, 9)  # of the check
    draw(tmp_path, 1, 5, 3)
    draw(tmp_path, 1, 5, 3)
    comparison.require(1)
    draw(tmp_path, 2, 3, 8, 8, 3)
    comparison.require(2)
    assert list((tmp_path / "draws").glob("*")) == []


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ((3, 3, 5, 4), UserError, r"other prompts in step 1 .*: rows 4, and not 5\."),
        ((3, 3, 3, 5, 5), UserError, r"other prompts in step 1 .*: rows 3, and not none"),
        ((3, 3, 5), TransientError, r"lost 1 responses in step 1, to the rows 5"),
    ],
)
def test_a_step_with_other_responses_is_named_with_its_rows(
    rows: tuple[int, ...], error: type[Exception], message: str, planned: Path, tmp_path: Path
) -> None:
    comparison = compared(tmp_path, planned)
    draw(tmp_path, 1, *rows)
    with pytest.raises(error, match=message):
        comparison.require(1)


def test_lost_responses_of_a_step_with_a_checkpoint_are_an_error_at_every_start(planned: Path, tmp_path: Path) -> None:
    comparison = compared(tmp_path, planned)
    draw(tmp_path, 1, 3, 3, 5)
    with pytest.raises(TransientError, match="lost 1 responses in step 1"):
        comparison.require(1)
    for _ in range(2):
        with pytest.raises(UserError, match=r"has saved a checkpoint since: remove .* to train again"):
            compared(tmp_path, planned, finished=1).require(1)


def test_a_response_that_cannot_be_graded_is_an_error_also_without_a_plan(tmp_path: Path) -> None:
    draw(tmp_path, 1, 3, error="no such row")
    comparison = compared(tmp_path, None, finished=1)
    with pytest.raises(UserError, match=r"step 1 cannot be graded: no such row\. When that is mended, remove "):
        comparison.require_graded()


def test_a_resumed_run_forgets_the_draws_of_steps_that_it_takes_again(planned: Path, tmp_path: Path) -> None:
    draw(tmp_path, 2, 8)
    comparison = compared(tmp_path, planned, finished=1)
    comparison.require(1)  # compared by the attempt that took it
    draw(tmp_path, 2, *(2 * [8, 3]))
    comparison.require(2)
