"""Attempts of verl's steps, compared with those planned and with what may be excluded, a step at a time."""

from pathlib import Path
from typing import Any

import pytest

from dagrpo.core.errors import TransientError, UserError
from dagrpo_verl.draws import Comparison, DrawLog, Drawn

SAMPLES = 2


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """Two rows a step, two steps."""
    path = tmp_path / "planned.jsonl"
    path.write_text("[3, 5]\n[8, 3]\n")
    return path


def draw(folder: Path, step: int, *rows: int, **fields: Any) -> None:
    log = DrawLog(folder / "draws")
    for row in rows:
        log.add(step, Drawn(index=row, **fields))
    log.close()


def compared(folder: Path, planned: Path | None, finished: int = 0) -> Comparison:
    comparison = Comparison(
        planned=planned, log=folder / "draws", samples=SAMPLES, max_excluded=0.25, finished=finished
    )
    comparison.forget_later_steps()
    return comparison


def test_steps_with_all_responses_pass_in_any_order_from_several_processes(planned: Path, tmp_path: Path) -> None:
    comparison = compared(tmp_path, planned)
    draw(tmp_path, 0, 9)  # of the check
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
    with pytest.raises(UserError, match=r"step 1 cannot be graded: no such row\. After fixing it, remove "):
        compared(tmp_path, None, finished=1).require_graded()


def test_a_resumed_run_forgets_the_draws_of_steps_that_it_takes_again(planned: Path, tmp_path: Path) -> None:
    draw(tmp_path, 2, 8)
    comparison = compared(tmp_path, planned, finished=1)
    comparison.require(1)  # compared by the attempt that took it
    draw(tmp_path, 2, *(2 * [8, 3]))
    comparison.require(2)


def test_a_step_with_too_many_excluded_attempts_is_named_also_where_it_is_the_last(
    planned: Path, tmp_path: Path
) -> None:
    broken: dict[str, Any] = {"excluded": True, "learned": False, "stop_reason": "excluded", "fault": "no server"}
    draw(tmp_path, 1, 3, 5, 5)
    draw(tmp_path, 1, 3, **broken)
    draw(tmp_path, 2, 3, 8)
    draw(tmp_path, 2, 3, 8, **broken)
    comparison = compared(tmp_path, planned, finished=2)
    comparison.require(1)
    with pytest.raises(UserError, match=r"step 2: 2 of 4 trajectories were excluded.*no server.*checkpoint since:"):
        comparison.require(2)


def test_a_step_without_anything_to_learn_from_is_the_reason_why_verl_has_ended(tmp_path: Path) -> None:
    comparison = compared(tmp_path, None)
    comparison.require_any_learned()
    draw(tmp_path, 1, 3, excluded=True, learned=False, fault="no server")
    comparison.require_any_learned()  # less than a group: of a step that was cut off
    draw(tmp_path, 1, 3, excluded=True, learned=False, fault="no server")
    with pytest.raises(UserError, match=r"step 1: 2 of 2 trajectories were excluded"):
        comparison.require_any_learned()
