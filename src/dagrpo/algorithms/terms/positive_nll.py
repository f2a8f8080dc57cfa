"""The negative log-likelihood of right answers beside the policy loss (VAPO, Yue et al. 2025, arXiv 2504.05118, equation 13)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.terms import Term, Weighed
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss


class Config(Weighed):
    """Imitation of the policy's own right answers. VAPO: 0.1."""

    coefficient: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="Factor of the negative log-likelihood; at 0 it is not computed."
    )


def positive_nll(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return -logprob on the tokens of sequences with a right answer, 0 on all others. [tokens]

    The mean is over those tokens alone, whatever share of the mini-batch they are.
    """
    return TokenLoss(per_token=-batch.logprobs * batch.positive)


TERM = Term(config=Config, function=positive_nll, positive_only=True)
