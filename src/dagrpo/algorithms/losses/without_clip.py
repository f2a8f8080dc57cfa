"""Losses of tokens without a clip."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.plugin_sections import Choice


# Group policy gradient: no ratio and no bound (Chu et al. 2025, arXiv 2504.02546).
class Gpg(Choice):
    """GPG's loss: the policy gradient. With several mini-batches, it does not correct for the later ones being off-policy."""


def gpg(batch: TokenBatch, config: Gpg) -> TokenLoss:
    """Return -A logprob. [tokens]"""
    return TokenLoss(per_token=-batch.advantages * batch.logprobs)


GPG = Loss(config=Gpg, function=gpg)


# Direct reward optimisation (Richemond et al. 2024, arXiv 2405.19107): a quadratic penalty, here per token.
class Dro(Choice):
    """DRO: the policy gradient, and the square of the log-ratio, an unbounded penalty."""

    beta: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.05,
        description="Weight of the penalty. The paper's differs by task; this is the one of Tinker's documentation.",
    )


def dro(batch: TokenBatch, config: Dro) -> TokenLoss:
    """Return -(A logprob - beta / 2 (logprob - old logprob)^2). [tokens]

    The paper's square is of a whole sequence, and a learned value is taken from its reward; this is the form of verl and
    Tinker, per token and with an advantage.
    """
    penalty = config.beta / 2 * (batch.logprobs - batch.old_logprobs) ** 2
    return TokenLoss(per_token=penalty - batch.advantages * batch.logprobs)


DRO = Loss(config=Dro, function=dro)


# Soft adaptive policy optimisation: a smooth gate instead of a clip (Gao et al. 2025, arXiv 2511.20347).
class Sapo(Choice):
    """SAPO: the further a token's ratio is from 1, the less it counts."""

    temperature_positive_advantage: Annotated[float, Field(gt=0, le=1000)] = Field(
        1.0, description="How fast the gate closes where the advantage is positive."
    )
    temperature_negative_advantage: Annotated[float, Field(gt=0, le=1000)] = Field(
        1.05,
        description="How fast the gate closes where the advantage is not positive: faster, since such tokens destabilise training more.",
    )


def sapo(batch: TokenBatch, config: Sapo) -> TokenLoss:
    """Return -A sigmoid(tau (rho - 1)) 4 / tau, rho = exp(logprob - old logprob), tau by the sign of A (section 3). [tokens]

    The gradient of the gate is 1 at ratio 1, as that of rho is, and falls off on both sides.
    """
    pushed_down = batch.advantages <= 0
    tau = batch.advantages.new_full((), config.temperature_negative_advantage)
    tau = tau.where(pushed_down, config.temperature_positive_advantage)
    gate = (tau * (batch.ratio_to(batch.old_logprobs) - 1)).sigmoid() * 4 / tau
    return TokenLoss(per_token=-batch.advantages * gate)


SAPO = Loss(config=Sapo, function=sapo, aggregation="seq-mean-token-mean")
