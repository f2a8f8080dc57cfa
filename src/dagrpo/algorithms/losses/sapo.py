"""Soft adaptive policy optimisation: a smooth gate instead of a clip (Gao et al. 2025, arXiv 2511.20347)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """SAPO: the further a token's ratio is from 1, the less it counts."""

    temperature_positive_advantage: Annotated[float, Field(gt=0, le=1000)] = Field(
        1.0, description="How fast the gate closes where the advantage is positive."
    )
    temperature_negative_advantage: Annotated[float, Field(gt=0, le=1000)] = Field(
        1.05,
        description="How fast the gate closes where the advantage is not positive: faster, since such tokens destabilise training more.",
    )


def sapo(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return -A sigmoid(tau (rho - 1)) 4 / tau, rho = exp(logprob - old logprob), tau by the sign of A (section 3). [tokens]

    The gradient of the gate is 1 at ratio 1, as that of rho is, and falls off on both sides.
    """
    pushed_down = batch.advantages <= 0
    tau = batch.advantages.new_full((), config.temperature_negative_advantage)
    tau = tau.where(pushed_down, config.temperature_positive_advantage)
    gate = (tau * (batch.ratio_to(batch.old_logprobs) - 1)).sigmoid() * 4 / tau
    return TokenLoss(per_token=-batch.advantages * gate)


LOSS = Loss(config=Config, function=sapo, aggregation="seq-mean-token-mean")
