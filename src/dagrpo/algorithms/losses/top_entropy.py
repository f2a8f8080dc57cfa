"""PPO's clipped surrogate on the tokens of highest entropy (Wang et al. 2025, arXiv 2506.01939)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dagrpo.algorithms.losses import Loss, ppo_clip
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch, TokenLoss

if TYPE_CHECKING:
    import torch


class Config(ppo_clip.Config):
    """PPO's clipped surrogate on the tokens with the highest entropy."""

    clip_high: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.28, description="The ratio is clipped above at 1 + clip_high."
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.2, description="Share of a mini-batch's tokens that count: those with the highest entropy."
    )


def select(batch: MiniBatch, config: Config) -> torch.Tensor:
    """Return 1 on the tokens whose entropy is at least the quantile 1 - share over the mini-batch, else 0. [tokens]"""
    rank = math.ceil(round((1 - config.share) * (len(batch.entropy) - 1), 6))
    return (batch.entropy >= batch.entropy.kthvalue(rank + 1).values).to(batch.entropy.dtype)


def top_entropy(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return the loss of ppo_clip on selected tokens, and 0 on the others, which still count as tokens. [tokens]"""
    assert batch.selected is not None
    loss = ppo_clip.ppo_clip(batch, config)
    return TokenLoss(
        per_token=loss.per_token * batch.selected, metrics={**loss.metrics, "selected_fraction": batch.selected.sum()}
    )


LOSS = Loss(config=Config, function=top_entropy, select=select)
