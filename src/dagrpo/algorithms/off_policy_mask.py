"""Off-policy sequence masking (DeepSeek-AI 2025, DeepSeek-V3.2, arXiv 2512.02556, equation 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagrpo.algorithms.tokens import TokenBatch

if TYPE_CHECKING:
    import torch


def kept_by_policy(batch: TokenBatch, threshold: float) -> torch.Tensor:
    """False on the tokens with a negative advantage of a sequence that the policy has moved away from. [tokens] bool

    It has where the mean over the sequence of the engine's logprob less the policy's is above the threshold, in nats: that
    counts the difference between engine and trainer, and what the step's earlier mini-batches have changed. Mistakes that
    the policy would hardly make any more are not learned from; right answers always are.
    """
    distance = batch.mean_of_sequence((batch.rollout_logprobs - batch.logprobs).detach())
    return ~((batch.advantages < 0) & (distance > threshold))
