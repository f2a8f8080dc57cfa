"""Group policy gradient: no ratio and no bound (Chu et al. 2025, arXiv 2504.02546)."""

from __future__ import annotations

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """GPG's loss: the policy gradient. With several mini-batches, it does not correct for the later ones being off-policy."""


def gpg(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return -A logprob. [tokens]"""
    return TokenLoss(per_token=-batch.advantages * batch.logprobs)


LOSS = Loss(config=Config, function=gpg)
