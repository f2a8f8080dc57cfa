"""Whether engine and trainer give the same tokens the same logprobs: of a step's rollouts, after they were made.

By the mean, and by the share of tokens that differ by more than rounding: a mean of 7e-4 has hidden 8% of such tokens
(verl issue 6280).
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from dagrpo.errors import UserError

# Mean distance in nats per token that is not taken for rounding. With equal weights, SGLang on a CPU in float32 is 4e-8
# away. The limit for bfloat16 is an estimate, wide on purpose: it is to catch another model, not to judge an engine.
LARGEST_MEAN_DIFFERENCE = {"float32": 0.02, "bfloat16": 0.25}
# Nats that rounding explains for nearly every token. In float32 on a CPU 6.8e-5 is the most that any run has shown; in
# bfloat16, 8% of tokens were outside when only the shape of a batch had changed.
BAND = {"float32": 0.01, "bfloat16": 0.1}
OUTSIDE = "gate/rollout_outside_fraction"


def logprob_differences(rollout_logprobs: Sequence[float], trainer_logprobs: Tensor) -> dict[str, float]:
    """How far the engine's logprobs are from the trainer's, both [trained tokens]: mean and largest, in nats."""
    difference = np.abs(np.asarray(rollout_logprobs) - trainer_logprobs.double().cpu().numpy())
    return {
        "policy/logprob_difference_mean": float(difference.mean()),
        "policy/logprob_difference_max": float(difference.max()),
    }


def require_the_policys_rollouts(
    rollout_logprobs: Sequence[float], trainer_logprobs: Tensor, dtype: str, step: int
) -> None:
    """UserError when the engine's logprobs are not those of the policy: it sampled with other weights.

    Both [trained tokens], of the policy that sampled: not a limit on how far an update may move it. `dtype` is the type
    that the engine computes in; the step counts from 1.
    """
    limit = LARGEST_MEAN_DIFFERENCE[dtype]
    difference = logprob_differences(rollout_logprobs, trainer_logprobs)["policy/logprob_difference_mean"]
    if not difference <= limit:  # so that what is not a number is refused
        raise UserError(
            f"step {step}: the engine's logprobs are {difference:.3g} nats per token away from the trainer's, where "
            f"{dtype} explains at most {limit:g}: the engine samples from other weights, or computes this model "
            "otherwise. Give the run a server of its own (runtime.engine.servers), or set rollout.dtype to float32."
        )


def outside_share(differences: Sequence[float], dtype: str) -> float:
    """The share of differences between logprobs, in nats, that are outside the band of an engine's type."""
    return float(np.mean([not abs(difference) <= BAND[dtype] for difference in differences]))


def require_few_outside(
    rollout_logprobs: Sequence[float], trainer_logprobs: Tensor, largest: float, dtype: str, step: int
) -> dict[str, float]:
    """The share of a step's tokens that are outside the band; both [trained tokens], and the step counts from 1.

    UserError: it is above `largest`.
    """
    differences = np.asarray(rollout_logprobs) - trainer_logprobs.double().cpu().numpy()
    share = outside_share(differences.tolist(), dtype)
    if share > largest:
        raise UserError(
            f"step {step}: {share:.0%} of the tokens have logprobs of engine and trainer that differ by more than "
            f"{BAND[dtype]:g} nats, and training.gates.outside_share allows {largest:.0%}: the engine samples from other "
            "weights, at another temperature or in another precision. Give the run a server of its own "
            "(runtime.engine.servers), or set rollout.dtype to float32."
        )
    return {OUTSIDE: share}
