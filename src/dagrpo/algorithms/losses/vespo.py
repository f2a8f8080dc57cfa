"""Variational sequence-level soft policy optimisation (Shen et al. 2026, arXiv 2602.10693): smooth weights."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import LOG_RATIO_LIMIT, TokenBatch, TokenLoss
from dagrpo.core.plugin_sections import Choice

Power = Annotated[float, Field(ge=0, le=1000)]
Decay = Annotated[float, Field(gt=0, le=1000)]  # at 0 the weight would grow with the ratio without bound


class Config(Choice):
    """VESPO: the further a sequence's ratio is from 1, the less it counts; the ratio is the product over its tokens."""

    power_positive_advantage: Power = Field(
        2.0, description="How fast the weight falls below a ratio of 1, where the advantage is not negative."
    )
    decay_positive_advantage: Decay = Field(
        3.0, description="How fast the weight falls above a ratio of 1, where the advantage is not negative."
    )
    power_negative_advantage: Power = Field(
        3.0, description="How fast the weight falls below a ratio of 1, where the advantage is negative."
    )
    decay_negative_advantage: Decay = Field(
        2.0, description="How fast the weight falls above a ratio of 1, where the advantage is negative."
    )


def vespo(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return -A sg(W^c1 exp(c2 (1 - W))) logprob, with the ratio W of the whole sequence (equation 20). [tokens]

    W = exp(sum over the sequence's tokens of logprob - rollout logprob). c1 is the power and c2 the decay, by the sign of A.
    No weight is above e^20.
    """
    log_ratio = batch.sum_of_sequence((batch.logprobs - batch.rollout_logprobs).detach())
    log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    negative = batch.advantages < 0
    power = log_ratio.new_full((), config.power_negative_advantage).where(negative, config.power_positive_advantage)
    decay = log_ratio.new_full((), config.decay_negative_advantage).where(negative, config.decay_positive_advantage)
    weight = (power * log_ratio + decay * (1 - log_ratio.exp())).clamp(max=LOG_RATIO_LIMIT).exp()
    return TokenLoss(per_token=-batch.advantages * weight * batch.logprobs, metrics={"sequence_weight": weight.sum()})


LOSS = Loss(config=Config, function=vespo, anchored_on_rollout=lambda config: True)
