"""Sequence MIS: sequence importance weights, 0 where engine and trainer differ much.

Liu, Li et al. 2025, "When speed kills stability: demystifying RL collapse from the training-inference mismatch".
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.corrections import Correction, TokenWeights, log_ratios, masked, ratios
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """Each token's loss times the importance weight of its whole sequence, or times 0 where that is outside of bounds."""

    minimum: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="A sequence with a smaller weight is masked; 0: none is."
    )
    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(
        3.0, description="A sequence with a larger weight is masked."
    )


def sequence_masked(batch: TokenBatch, config: Config) -> TokenWeights:
    """Return w = exp(sum over the sequence of old - rollout logprob) where minimum <= w <= maximum, else 0, on its tokens. [tokens]

    Example: two tokens, each twice as likely to the trainer as to the engine: their sequence's weight is 4, so neither is
    learned from.
    """
    weights = ratios(batch.sum_of_sequence(log_ratios(batch)))
    return masked(weights, weights, config.minimum, config.maximum)


CORRECTION = Correction(config=Config, function=sequence_masked)
