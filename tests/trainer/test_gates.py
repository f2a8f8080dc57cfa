import math

import pytest
import torch

from dagrpo.errors import UserError
from dagrpo.trainer.gates import logprob_differences, require_finite_gradient, require_the_policys_rollouts


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused(norm: float) -> None:
    with pytest.raises(UserError, match=f"the gradient's norm is {norm}"):
        require_finite_gradient(norm)
    require_finite_gradient(1e30)


def test_logprob_differences_are_the_mean_and_the_largest() -> None:
    differences = logprob_differences([-1.0, -2.0, -3.0], torch.tensor([-1.0, -2.5, -2.75]))
    assert differences == {"logprob_difference_mean": 0.25, "logprob_difference_max": 0.5}


@pytest.mark.parametrize(("dtype", "refused"), [("float32", True), ("bfloat16", False)])
def test_what_rounding_explains_in_bfloat16_is_another_model_in_float32(dtype: str, refused: bool) -> None:
    rollout, trainer = [-1.0, -2.0], torch.tensor([-1.05, -1.95])
    if not refused:
        require_the_policys_rollouts(rollout, trainer, dtype, 3)
        return
    with pytest.raises(UserError, match=r"step 3: the engine's logprobs are 0\.05 nats .* float32 explains"):
        require_the_policys_rollouts(rollout, trainer, dtype, 3)


def test_logprobs_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="are nan nats"):
        require_the_policys_rollouts([-1.0], torch.tensor([math.nan]), "bfloat16", 1)
