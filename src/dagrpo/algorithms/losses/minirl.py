"""MiniRL: importance-weighted policy gradient with PPO's clip as a mask (Zheng et al. 2025, arXiv 2512.01374)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """MiniRL: weighted by the ratio to the engine's logprobs, masked by the ratio to the trainer's."""

    clip_low: Annotated[float, Field(gt=0, le=1)] = Field(
        0.2, description="A token with a negative advantage counts down to a ratio of 1 - clip_low."
    )
    clip_high: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.27, description="A token with a positive advantage counts up to a ratio of 1 + clip_high."
    )
    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(
        5.0, description="No importance weight is larger than this."
    )


def minirl(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return -A M sg(min(exp(logprob - rollout logprob), maximum)) logprob (section 4). [tokens]

    M is 0 where A > 0 and rho > 1 + clip_high, or A < 0 and rho < 1 - clip_low, with rho = exp(logprob - old logprob);
    else 1. The paper takes the reward less the mean of its group for A: advantage grpo with normalize_by_std false.
    """
    weight = batch.ratio_to(batch.rollout_logprobs).detach().clamp(max=config.maximum)
    ratio = batch.ratio_to(batch.old_logprobs).detach()
    too_high = (batch.advantages > 0) & (ratio > 1 + config.clip_high)
    too_low = (batch.advantages < 0) & (ratio < 1 - config.clip_low)
    masked = too_high | too_low
    return TokenLoss(
        per_token=-batch.advantages * weight * ~masked * batch.logprobs, metrics={"clip_fraction": masked.sum()}
    )


LOSS = Loss(config=Config, function=minirl, aggregation="seq-mean-token-sum", anchored_on_rollout=lambda config: True)
