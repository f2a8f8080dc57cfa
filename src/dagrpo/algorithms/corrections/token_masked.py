"""IcePop: token importance weights, 0 where engine and trainer differ much (Ling Team 2025, arXiv 2510.18855)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.corrections import Correction, TokenWeights, log_ratios, masked, ratios
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """IcePop: each token's loss times its importance weight, or times 0 where that is outside of bounds."""

    minimum: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="A token with a smaller weight is masked.")
    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(5.0, description="A token with a larger weight is masked.")


def token_masked(batch: TokenBatch, config: Config) -> TokenWeights:
    """Return w = exp(old - rollout logprob) where minimum <= w <= maximum, else 0. [tokens]

    Example: a token twice as likely to the trainer as to the engine weighs 2; one eight times as likely weighs nothing.
    """
    weights = ratios(log_ratios(batch))
    return masked(weights, weights, config.minimum, config.maximum)


CORRECTION = Correction(config=Config, function=token_masked)
