"""Statistics of one policy update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from dagrpo.trainer.state.digest_table import StepDigests

SKIPPED = "gate/skipped_updates"
OVERFLOWED = "gate/overflowed_updates"  # among the skipped ones; only with a loss scale


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """Statistics of one step's update."""

    logprobs: Tensor  # [tokens], of the policy before the step, as the trainer computes them; on the CPU
    # From here on, over the counted tokens and the mini-batches with any of them.
    entropy: float  # nats per token, of that policy
    loss: float
    kl: float  # to the reference, 0 without one
    metrics: Mapping[str, float]  # of the loss and its terms, per token
    grad_norm: float  # before clipping, mean over mini-batches
    learning_rate: float
    digests: StepDigests  # of gradients and weights
    advantages: Tensor | None = None  # [tokens], those of the update
    vision_grad_norm: float | None = None  # as grad_norm, of the vision tower alone; None: no tower is trained
    skipped: int = 0  # mini-batches whose update was skipped, since a loss or a gradient was not finite
    overflowed: int = 0  # among the skipped ones, those that the loss scale explains
    loss_scale: float | None = None  # after the step; None: the loss is not scaled


def finite_or_zero(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of a step with a skipped update, 0 in place of non-finite ones."""
    return {name: value if math.isfinite(value) else 0.0 for name, value in figures.items()}
