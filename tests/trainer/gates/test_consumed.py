from pathlib import Path

import pyarrow as pa
import pytest

from dagrpo.errors import UserError
from dagrpo.files import write_parquet
from dagrpo.trainer.gates.consumed import require_prompts

PLAN = ([4, 4, 9, 9], [2, 2, 7, 7], [1, 1, 3, 3])


def _recorded(folder: Path, *steps: list[int]) -> None:
    for number, rows in enumerate(steps, start=1):
        write_parquet(folder / f"{number}.parquet", pa.table({"problem_index": rows, "reward": [0.0] * len(rows)}))


def _check(folder: Path, steps: int) -> None:
    require_prompts(lambda step: folder / f"{step}.parquet", steps, PLAN.__getitem__)


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
    ],
)
def test_a_step_of_other_prompts_is_refused(step: int, rows: list[int], told: str, tmp_path: Path) -> None:
    recorded = list(PLAN)
    recorded[step - 1] = rows
    _recorded(tmp_path, *recorded)
    with pytest.raises(UserError, match=rf"{step}\.parquet is .*{told}"):
        _check(tmp_path, 3)
