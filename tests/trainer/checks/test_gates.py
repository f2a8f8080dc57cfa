import math
from pathlib import Path
from typing import Any

import pytest
import torch

from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.checks.logprob_agreement import OUTSIDE, require_the_policys_rollouts
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.metrics.step import logprob_differences
from dagrpo.trainer.model.optimizer import require_finite_gradient
from dagrpo.utils.tables import read_parquet


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused(norm: float) -> None:
    with pytest.raises(UserError, match=f"the gradient's norm is {norm}"):
        require_finite_gradient(norm)
    require_finite_gradient(1e30)


def test_logprob_differences_are_the_mean_and_the_largest() -> None:
    differences = logprob_differences([-1.0, -2.0, -3.0], torch.tensor([-1.0, -2.5, -2.75]))
    assert differences == {"policy/logprob_difference_mean": 0.25, "policy/logprob_difference_max": 0.5}


def _judged(rollout: list[float], trainer: list[float], dtype: str, state: Path, **gates: Any) -> dict[str, float]:
    """Of a step 3 with a prompt of one token and an answer of so many."""
    batch = Batch(
        sequences=TokenSequences.of([[5, *range(len(rollout))]], [[False] + [True] * len(rollout)]),
        trajectories=torch.tensor([0]),
        rollout_logprobs=torch.tensor(rollout),
        positive=torch.tensor([True]),
    )
    return require_the_policys_rollouts(batch, torch.tensor(trainer), Gates(**gates), dtype=dtype, state=state, step=3)


def test_a_mean_that_rounding_explains_in_bfloat16_is_another_model_in_float32(tmp_path: Path) -> None:
    rollout, trainer = [-1.0, -2.0], [-1.05, -1.95]
    assert _judged(rollout, trainer, "bfloat16", tmp_path) == {OUTSIDE: 0.0}
    with pytest.raises(UserError, match=r"step 3: the engine's logprobs are 0\.05 nats .* float32 explains"):
        _judged(rollout, trainer, "float32", tmp_path)


def test_a_few_tokens_that_are_off_are_found_where_the_mean_hides_them(tmp_path: Path) -> None:
    rollout, trainer = [-1.0] * 100, [-1.0] * 98 + [-1.5] * 2  # 2% of them by 0.5 nats: a mean of 0.01
    with pytest.raises(
        UserError, match=r"step 3: 2% of the tokens .* 0\.01 nats apart .*outside_share: 1%.* is in "
    ) as caught:
        _judged(rollout, trainer, "float32", tmp_path)
    table = read_parquet(tmp_path / "refused/rollouts_step_00003.parquet")
    assert str(tmp_path / "refused/rollouts_step_00003.parquet") in str(caught.value)
    assert table["token_id"].to_pylist() == list(range(100))
    assert [round(each, 3) for each in table["trainer_logprob"].to_pylist()] == trainer
    assert _judged(rollout, trainer, "float32", tmp_path, outside_share=0.02) == {OUTSIDE: 0.02}


def test_in_bfloat16_a_third_of_the_tokens_may_be_off_and_not_two_thirds_nor_a_logprob_that_is_no_number(
    tmp_path: Path,
) -> None:
    rollout, third, most = [-1.0] * 6, [-1.15] * 2 + [-1.0] * 4, [-1.15] * 4 + [-1.0] * 2
    assert _judged(rollout, third, "bfloat16", tmp_path)[OUTSIDE] == pytest.approx(1 / 3)
    with pytest.raises(UserError, match="67% of the tokens"):
        _judged(rollout, most, "bfloat16", tmp_path)
    with pytest.raises(UserError, match="are nan nats"):
        _judged([-1.0], [math.nan], "bfloat16", tmp_path)
