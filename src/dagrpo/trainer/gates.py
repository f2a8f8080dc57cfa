"""Checks while a policy is trained: what would otherwise go wrong in silence ends the run in a sentence."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from dagrpo.errors import UserError

# Mean distance in nats per token that is not taken for rounding. With equal weights, SGLang on a CPU in float32 is 4e-8
# away. The limit for bfloat16 is an estimate, wide on purpose: it is to catch another model, not to judge an engine.
LARGEST_MEAN_DIFFERENCE = {"float32": 0.02, "bfloat16": 0.25}


def require_finite_gradient(norm: float) -> None:
    """UserError when a gradient's norm is infinite or not a number: the optimizer must not see it."""
    if not math.isfinite(norm):
        raise UserError(
            f"the gradient's norm is {norm}: lower the learning rate, or look at the rewards and logprobs of this step"
        )


def logprob_differences(rollout_logprobs: Sequence[float], trainer_logprobs: Tensor) -> dict[str, float]:
    """How far the engine's logprobs are from the trainer's, both [trained tokens]: mean and largest, in nats."""
    difference = np.abs(np.asarray(rollout_logprobs) - trainer_logprobs.double().cpu().numpy())
    return {"logprob_difference_mean": float(difference.mean()), "logprob_difference_max": float(difference.max())}


def require_the_policys_rollouts(
    rollout_logprobs: Sequence[float], trainer_logprobs: Tensor, dtype: str, step: int
) -> None:
    """UserError when the engine's logprobs are not those of the policy: it sampled with other weights.

    Both [trained tokens], of the policy that sampled: not a limit on how far an update may move it. `dtype` is the type
    that the engine computes in; the step counts from 1.
    """
    limit = LARGEST_MEAN_DIFFERENCE[dtype]
    difference = logprob_differences(rollout_logprobs, trainer_logprobs)["logprob_difference_mean"]
    if not difference <= limit:  # so that what is not a number is refused
        raise UserError(
            f"step {step}: the engine's logprobs are {difference:.3g} nats per token away from the trainer's, where "
            f"{dtype} explains at most {limit:g}: the engine samples from other weights, or computes this model "
            "otherwise. Give the run a server of its own (runtime.engine.servers), or set rollout.dtype to float32."
        )


@contextmanager
def advice_on_memory(key: str, value: int) -> Iterator[None]:
    """Turn running out of the device's memory into a UserError that names the parameter to lower, and its value."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        remedy = (
            f"lower {key} (it is {value}), and run again: it goes on from the last saved step"
            if value > 1
            else "use a device with more memory, more processes (runtime.training.processes), or shorter sequences"
        )
        raise UserError(f"the device ran out of memory: {remedy}.") from error
