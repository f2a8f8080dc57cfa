"""The clipped surrogate of PPO (Schulman et al. 2017, arXiv 1707.06347, equation 7), per token and to be minimised."""

from dataclasses import dataclass

import torch

LOG_RATIO_LIMIT = 20.0  # exp() of more says nothing and overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedLoss:
    """Example: ratio 1.5, advantage +1, clip_high 0.2: loss -1.2, clipped True."""

    per_token: torch.Tensor  # [tokens]
    clipped: torch.Tensor  # [tokens] bool: the clipped branch was the larger loss


def ppo_clip(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> ClippedLoss:
    """max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)), rho = exp(logprob - old logprob). All [tokens].

    Not the dual clip: a large ratio with a negative advantage keeps its whole loss.
    """
    ratio = (logprobs - old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return ClippedLoss(per_token=torch.maximum(plain, bounded), clipped=bounded > plain)
