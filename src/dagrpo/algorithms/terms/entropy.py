"""The entropy bonus (Mnih et al. 2016, arXiv 1602.01783, section 4)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.terms import Term, Weighed
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss


class Config(Weighed):
    """The entropy of each token's distribution, with a fixed coefficient. Mnih et al. 2016: 0.01; DAPO and most since: none."""

    coefficient: Annotated[float, Field(ge=-1, le=1)] = Field(
        0.0, description="Factor of the entropy; a negative one lowers the entropy, and at 0 it is not computed."
    )


def entropy(batch: TokenBatch, config: Weighed) -> TokenLoss:
    """Return -H, the entropy of the distribution that the token is drawn from, in nats and over the whole vocabulary. [tokens]"""
    return TokenLoss(per_token=-batch.entropy)


TERM = Term(config=Config, function=entropy, needs_entropy=True)
