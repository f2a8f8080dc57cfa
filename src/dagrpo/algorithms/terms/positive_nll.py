"""The negative log-likelihood of right answers beside the policy loss (VAPO, Yue et al. 2025, arXiv 2504.05118, equation 13)."""

from __future__ import annotations

from dagrpo.algorithms.terms import Term, Weighed
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss


class Config(Weighed):
    """Imitation of the policy's own right answers. VAPO: 0.1."""


def positive_nll(batch: TokenBatch, config: Config) -> TokenLoss:
    """-logprob on the tokens of sequences with a right answer. [tokens]"""
    return TokenLoss(per_token=-batch.logprobs * batch.positive)


TERM = Term(config=Config, function=positive_nll, positive_only=True)
