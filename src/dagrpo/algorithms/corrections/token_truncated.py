"""Truncated importance weights of tokens (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training")."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.corrections import Correction, TokenWeights
from dagrpo.algorithms.tokens import LOG_RATIO_LIMIT, TokenBatch
from dagrpo.params.plugged import Choice


class Config(Choice):
    """TIS: each token's loss times its importance weight, cut at a maximum."""

    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(2.0, description="No weight is larger than this.")


def token_truncated(batch: TokenBatch, config: Config) -> TokenWeights:
    """w = min(exp(old - rollout logprob), maximum). [tokens]

    Example: a token twice as likely to the trainer as to the engine weighs 2; one eight times as likely weighs 2, too.
    """
    log_ratio = (batch.old_logprobs - batch.rollout_logprobs).detach()
    weights = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    cut = weights.clamp(max=config.maximum)
    return TokenWeights(per_token=cut, metrics={"correction_truncated_fraction": (cut < weights).sum()})


CORRECTION = Correction(config=Config, function=token_truncated)
