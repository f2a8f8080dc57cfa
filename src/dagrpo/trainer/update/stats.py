"""Statistics of one policy update."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from dagrpo.trainer.sync.digest_table import StepDigests


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
