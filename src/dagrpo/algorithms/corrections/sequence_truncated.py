"""Truncated importance weights of sequences.

Liu, Li et al. 2025, "When speed kills stability: demystifying RL collapse from the training-inference mismatch".
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.corrections import Correction, TokenWeights, log_ratios, ratios, truncated
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """Each token's loss times the importance weight of its whole sequence, cut at a maximum."""

    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(2.0, description="No weight is larger than this.")


def sequence_truncated(batch: TokenBatch, config: Config) -> TokenWeights:
    """Return w = min(exp(sum over the sequence of old - rollout logprob), maximum) on each of its tokens. [tokens]

    Unbiased but for the cut, and of a variance that grows with the length. Example: two tokens, each 1.2 times as likely
    to the trainer as to the engine, weigh 1.44 both.
    """
    return truncated(ratios(batch.sum_of_sequence(log_ratios(batch))), config.maximum)


CORRECTION = Correction(config=Config, function=sequence_truncated)
