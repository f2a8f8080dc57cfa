"""The clipped surrogate of PPO (Schulman et al. 2017, arXiv 1707.06347, equation 7), per token and to be minimised."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import LOG_RATIO_LIMIT, TokenBatch, TokenLoss
from dagrpo.errors import UserError
from dagrpo.params.plugged import Choice


class Config(Choice):
    """PPO's clipped surrogate: the ratio of each token is clipped."""

    clip_low: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="The ratio is clipped below at 1 - clip_low."
    )
    clip_high: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.2, description="The ratio is clipped above at 1 + clip_high."
    )

    @model_validator(mode="after")
    def _clip_is_ordered(self) -> Self:
        if self.clip_high < self.clip_low:
            raise UserError(
                f"algorithm.loss.clip_high ({self.clip_high}) is below clip_low ({self.clip_low}): use clip_high >= clip_low "
                "(DAPO: 0.28, 0.2)"
            )
        return self


def ppo_clip(batch: TokenBatch, config: Config) -> TokenLoss:
    """max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)), rho = exp(logprob - old logprob). All [tokens].

    Example: ratio 1.5, advantage +1, clip_high 0.2: loss -1.2, and the token counts as clipped. Not the dual clip: a
    large ratio with a negative advantage keeps its whole loss.
    """
    ratio = (batch.logprobs - batch.old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    plain = -batch.advantages * ratio
    bounded = -batch.advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    return TokenLoss(per_token=plain.maximum(bounded), metrics={"clip_fraction": (bounded > plain).sum()})


LOSS = Loss(config=Config, function=ppo_clip)
