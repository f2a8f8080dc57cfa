"""Truncated importance weights of tokens (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training")."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.corrections import Correction, TokenWeights, log_ratios, ratios, truncated
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """TIS: each token's loss times its importance weight, cut at a maximum."""

    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(2.0, description="No weight is larger than this.")


def token_truncated(batch: TokenBatch, config: Config) -> TokenWeights:
    """Return w = min(exp(old - rollout logprob), maximum). [tokens]

    Example: a token twice as likely to the trainer as to the engine weighs 2; one eight times as likely weighs 2, too.
    """
    return truncated(ratios(log_ratios(batch)), config.maximum)


CORRECTION = Correction(config=Config, function=token_truncated)
