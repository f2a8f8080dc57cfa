from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from tests.rollout.problems import problem

from dagrpo.core.errors import UserError
from dagrpo.trainer.checks.suite import require_prompts
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler
from dagrpo.utils.tables import read_parquet, write_parquet

PLAN = ([4, 4, 9, 9], [2, 2, 7, 7], [1, 1, 3, 3])
PROBLEMS = [problem(row, pass_rate=1 - place / 10) for place, row in enumerate((4, 9, 2, 7, 1, 3))]


class Files(NamedTuple):
    """Recorded tables in a folder."""

    folder: Path

    def of(self, step: int) -> Path:
        return self.folder / f"{step}.parquet"

    def prompts(self, step: int) -> list[int]:
        return [*read_parquet(self.of(step))["problem_index"].to_pylist()]


def _record(folder: Path, step: int, rows: Sequence[int], **columns: Sequence[Any]) -> None:
    plain = {
        "correct": [False] * len(rows),
        "stop_reason": ["answered"] * len(rows),
        "completion_tokens": [1] * len(rows),
    }
    write_parquet(folder / f"{step}.parquet", pa.table({"problem_index": rows, **plain, **columns}))


def _recorded(folder: Path, *steps: list[int]) -> None:
    for number, rows in enumerate(steps, start=1):
        _record(folder, number, rows)


def _check(folder: Path, steps: int, **changed: Any) -> None:
    values = {"prompts_per_step": 2, "samples_per_prompt": 2, "order": "easy_first"}
    training = Training.model_validate(values | changed)
    files = Files(folder)
    require_prompts(files.of, files.prompts, steps, PromptSampler(PROBLEMS, training, 0), training)


def test_records_of_the_planned_prompts_pass(tmp_path: Path) -> None:
    _recorded(tmp_path, *PLAN)
    _check(tmp_path, 3)
    _check(tmp_path, 0)


@pytest.mark.parametrize(
    ("step", "rows", "told"),
    [
        (2, PLAN[2], r"rows 1, 3 of .* say 4 at rows 2, 7"),  # a resume that skipped a step
        (2, PLAN[0], r"rows 4, 9 of .* say 4 at rows 2, 7"),  # one that repeated a step
        (3, [1, 1, 3], r"of 3 attempts .* say 4"),
        (1, [9, 9, 4, 4], r"rows 9, 4 of .* rows 4, 9"),
        (1, [4, 4, 9, 9, 2, 2], r"of 6 attempts .* say 4"),  # more than a batch, and nothing lets a step draw more
    ],
)
def test_a_step_of_other_prompts_is_refused(step: int, rows: list[int], told: str, tmp_path: Path) -> None:
    recorded = list(PLAN)
    recorded[step - 1] = rows
    _recorded(tmp_path, *recorded)
    with pytest.raises(UserError, match=rf"{step}\.parquet is .*{told}"):
        _check(tmp_path, 3)


def test_where_a_step_may_draw_more_the_next_goes_on_behind_all_that_it_drew(tmp_path: Path) -> None:
    several = {"max_rounds": 2}
    _recorded(tmp_path, [4, 4, 9, 9, 2, 2], [7, 7, 1, 1])
    _check(tmp_path, 2, dynamic_sampling=several)
    _recorded(tmp_path, [4, 4, 9, 9, 2, 2], [2, 2, 7, 7])
    with pytest.raises(UserError, match=r"2\.parquet is .* rows 2, 7 of .* say 4 at rows 7, 1"):
        _check(tmp_path, 2, dynamic_sampling=several)
    _recorded(tmp_path, [4, 4], [9, 9, 2, 2])
    with pytest.raises(UserError, match=r"1\.parquet is of 2 attempts .* say 4"):
        _check(tmp_path, 2, dynamic_sampling=several)


def _check_cut(folder: Path, *cut_off: int) -> None:
    values: dict[str, Any] = {"prompts_per_step": 2, "samples_per_prompt": 2, "order": "easy_first"}
    training = Training.model_validate(values | {"dynamic_sampling": {"oversampling": 2.0, "max_aborts": 1}})
    drawing = PromptSampler(PROBLEMS, training, 0)
    files = Files(folder)
    require_prompts(files.of, files.prompts, len(cut_off), drawing, training, lambda step: cut_off[step - 1])


def test_prompts_that_were_cut_off_are_planned_again_before_all_others(tmp_path: Path) -> None:
    """Step 1 has drawn 4, 9, 2, 7 and put 4 and 2 back; step 2 draws these, 1 and 3, and puts 1 back; then comes an epoch's end."""
    _recorded(tmp_path, [9, 9, 7, 7], [4, 4, 2, 2, 3, 3], [1, 1, 4, 4])
    _check_cut(tmp_path, 2, 1, 0)


@pytest.mark.parametrize(
    ("steps", "cut_off", "told"),
    [
        (([9, 9, 7, 7], [1, 1, 3, 3]), (2, 0), r"2\.parquet is .* rows 1, 3 of .* rows 4, 2"),  # two are lost
        (
            ([9, 9, 7, 7], [4, 4, 2, 2], [9, 9, 1, 1]),
            (2, 0, 0),
            r"3\.parquet is .* rows 9, 1 of .* rows 1, 3",
        ),  # one comes twice
        (([9, 9, 7, 7],), (0,), r"1\.parquet is .* rows 9, 7 of .* rows 4, 9"),  # nothing was cut off
        (([7, 7, 9, 9],), (2,), r"1\.parquet is .* rows 7, 9 of .* rows 4, 9, 2, 7"),  # in another order
    ],
)
def test_a_step_that_loses_or_repeats_what_was_cut_off_is_refused(
    steps: tuple[list[int], ...], cut_off: tuple[int, ...], told: str, tmp_path: Path
) -> None:
    _recorded(tmp_path, *steps)
    with pytest.raises(UserError, match=told):
        _check_cut(tmp_path, *cut_off)


def test_prompts_that_the_records_retire_are_not_planned_again(tmp_path: Path) -> None:
    """All that is left of row 4 is right; of row 9 one attempt is wrong, and nothing was written in row 7."""
    reasons = ["answered", "excluded", "answered", "answered"]
    _record(tmp_path, 1, PLAN[0], correct=[True, False, True, False], stop_reason=reasons)
    _record(tmp_path, 2, PLAN[1], correct=[True, None, True, True], completion_tokens=[1, 1, 0, 0])
    later = [PLAN[2], [9, 9, 2, 2], [7, 7, 1, 1]]
    for number, rows in enumerate(later, start=3):
        _record(tmp_path, number, rows)
    _check(tmp_path, 5, retire_at=1.0)
    with pytest.raises(UserError, match=r"4\.parquet is .* rows 9, 2 of .* say 4 at rows 4, 9"):
        _check(tmp_path, 5)
