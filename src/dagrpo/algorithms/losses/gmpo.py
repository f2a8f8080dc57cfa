"""Geometric-mean policy optimisation (Zhao et al. 2025, arXiv 2507.20673): the mean over a sequence of clipped ratios."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import LOG_RATIO_LIMIT, TokenBatch, TokenLoss
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """GMPO: each token's log-ratio is clipped on the side that its advantage pushes to; then comes the mean."""

    clip_low: Annotated[float, Field(gt=0, le=20)] = Field(
        0.4, description="The logarithm of the ratio is clipped below at -clip_low where the advantage is negative."
    )
    clip_high: Annotated[float, Field(gt=0, le=20)] = Field(
        0.4, description="It is clipped above at clip_high where the advantage is positive."
    )


def gmpo(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return -A s on each token, with s = exp(mean over the sequence's tokens of the clipped logprob - old logprob). [tokens]

    The value of s on a token is that of its sequence and its gradient is s times that of the token's own clipped
    log-ratio, as in gspo, so that the mean over tokens has the gradient of the published sequence loss.
    """
    log_ratio = batch.logprobs - batch.old_logprobs
    bounded = log_ratio.clamp(-config.clip_low, config.clip_high)
    clipped = log_ratio.minimum(bounded).where(batch.advantages > 0, log_ratio.maximum(bounded))
    own = clipped - clipped.detach()  # 0, with the gradient of the token's log-ratio
    ratio = (batch.mean_of_sequence(clipped.detach()) + own).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return TokenLoss(per_token=-batch.advantages * ratio, metrics={"clip_fraction": (clipped != log_ratio).sum()})


LOSS = Loss(config=Config, function=gmpo, aggregation="seq-mean-token-mean")
