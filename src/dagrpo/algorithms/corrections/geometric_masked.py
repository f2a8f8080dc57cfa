"""Token importance weights, 0 where their geometric mean is far from 1.

Liu, Li et al. 2025, "When speed kills stability", part 3, whose bounds these are; NeMo RL calls it seq-mask-tis.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.corrections import Correction, TokenWeights, log_ratios, masked, ratios
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """Each token's loss times its importance weight, or times 0 where its sequence's geometric mean is outside of bounds."""

    minimum: Annotated[float, Field(ge=0, le=1)] = Field(
        0.999, description="A sequence with a smaller geometric mean is masked."
    )
    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(
        1.001, description="A sequence with a larger geometric mean is masked."
    )


def geometric_masked(batch: TokenBatch, config: Config) -> TokenWeights:
    """Return w = exp(old - rollout logprob) where minimum <= exp(its mean over the sequence) <= maximum, else 0. [tokens]

    The mean does not grow with the length, as the sum does: long sequences are not masked for being long. No weight is cut.
    """
    of_tokens = log_ratios(batch)
    return masked(ratios(of_tokens), ratios(batch.mean_of_sequence(of_tokens)), config.minimum, config.maximum)


CORRECTION = Correction(config=Config, function=geometric_masked)
