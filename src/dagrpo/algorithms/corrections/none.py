"""No correction: the engine's samples count as the trainer's policy's."""

from __future__ import annotations

from dagrpo.algorithms.corrections import Correction, TokenWeights
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """No correction."""


def none(batch: TokenBatch, config: Config) -> TokenWeights:
    """Return 1 on each token."""
    return TokenWeights(per_token=batch.old_logprobs.new_ones(len(batch.old_logprobs)))


CORRECTION = Correction(config=Config, function=none, weighs=False)
