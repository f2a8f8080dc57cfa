"""Entropy bonuses."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from dagrpo.algorithms.terms import Coefficient, Term, Weighed
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.errors import UserError


# The entropy bonus (Mnih et al. 2016, arXiv 1602.01783, section 4).
class Entropy(Weighed):
    """The entropy of each token's distribution, with a fixed coefficient. Mnih et al. 2016: 0.01; DAPO and most since: none."""

    coefficient: Annotated[float, Field(ge=-1, le=1)] = Field(
        0.0, description="Factor of the entropy; a negative one lowers the entropy, and at 0 it is not computed."
    )


def entropy(batch: TokenBatch, config: Weighed) -> TokenLoss:
    """Return -H, the entropy of the distribution that the token is drawn from, in nats and over the whole vocabulary. [tokens]"""
    return TokenLoss(per_token=-batch.entropy)


ENTROPY = Term(config=Entropy, function=entropy, needs_entropy=True)


# An entropy bonus with a target (He et al. 2025, Skywork Open Reasoner 1, arXiv 2505.22312, section on adaptive entropy control).
class AdaptiveEntropy(Weighed):
    """The entropy of each token's distribution, with a coefficient that keeps it at a target. Skywork-OR1: target 0.2, delta 0.005."""

    coefficient: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description="Factor of the entropy in the first step; at 0 the term is never computed. 0.005 is one delta.",
    )
    target: Annotated[float, Field(gt=0, le=100)] = Field(
        0.2, description="Entropy in nats per token below which the bonus is given."
    )
    delta: Annotated[float, Field(gt=0, le=1)] = Field(
        0.005, description="Increase of the factor after a step below the target, and decrease after a step above it."
    )
    maximum: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Largest factor.")

    @model_validator(mode="after")
    def _begins_within_its_bounds(self) -> Self:
        if self.coefficient > self.maximum:
            raise UserError(
                f"algorithm.terms.adaptive_entropy.coefficient ({self.coefficient}) is above its maximum ({self.maximum}): lower "
                "the one, or raise the other"
            )
        return self


def adapted(basis: float, measured: float, config: AdaptiveEntropy) -> Coefficient:
    """Return c' = c + delta where the entropy is at most the target, else c - delta; applied is c' in the first case, else 0.

    The entropy is the mean over the step that has been taken, so that the bonus follows it by one step; the paper begins with
    c = 0 and compares the entropy of the step that is about to be taken, for which the policy would be run once more.
    """
    is_below = measured <= config.target
    changed = basis + config.delta if is_below else basis - config.delta
    bounded = min(max(changed, 0.0), config.maximum)
    return Coefficient(applied=bounded if is_below else 0.0, basis=bounded)


ADAPTIVE_ENTROPY = Term(config=AdaptiveEntropy, function=entropy, needs_entropy=True, adapted=adapted)
