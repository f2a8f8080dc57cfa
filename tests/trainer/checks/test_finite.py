import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.everyday import everyday
from tests.trainer import runs
from tests.trainer.checks import ranks

from dagrpo.core.errors import UserError
from dagrpo.trainer.checks.no_signal import SkippedSteps
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.model.optimizer import finite_everywhere
from dagrpo.trainer.update.stats import SKIPPED, finite_or_zero
from dagrpo.utils.distributed import single_process
from dagrpo.utils.tables import read_parquet


def test_one_number_that_is_not_finite_is_enough() -> None:
    world = single_process()
    assert finite_everywhere(torch.tensor([1e38, -1e38, 0.0]), world)
    for wrong in (math.nan, math.inf, -math.inf):
        assert not finite_everywhere(torch.tensor([1.0, wrong]), world)
    assert finite_or_zero({"loss": math.nan, "kl": 0.5}) == {"loss": 0.0, "kl": 0.5}


def test_skipped_steps_are_counted_in_a_row_and_one_too_many_keeps_the_rollouts(tmp_path: Path) -> None:
    skipped, table = SkippedSteps(Gates(skipped_steps=2), tmp_path), pa.table({"reward": [math.nan]})
    for step, updates in enumerate((1.0, 1.0, 0.0, 1.0, 2.0), start=1):
        skipped.count({SKIPPED: updates})
        skipped.check(step, table)
    skipped.count({SKIPPED: 1.0})
    with pytest.raises(
        UserError, match=r"step 6: .* not finite in 3 steps in a row, .*skipped_steps allows 2"
    ) as caught:
        skipped.check(6, table)
    path = tmp_path / "refused" / "rollouts_step_00006.parquet"
    assert str(path) in str(caught.value)
    assert read_parquet(path).num_rows == 1


@pytest.mark.parametrize("processes", everyday([1], [1, 2]))
def test_a_reward_that_is_no_number_skips_its_mini_batch_in_every_rank(processes: int, tmp_path: Path) -> None:
    initial, _ = runs.make_inputs(tmp_path)
    runs.launch(processes, ranks.__file__, initial, tmp_path)
    first, *others = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(processes))
    assert [step["skipped"] for step in first] == [1, 0]  # of two mini-batches
    assert all(math.isfinite(value) for step in first for value in step.values())
    assert first[0]["norm"] > 0  # the other mini-batch was learned from
    assert first[0]["sum"] != first[1]["sum"]
    assert all(other == first for other in others)
