"""Direct reward optimisation (Richemond et al. 2024, arXiv 2405.19107): a quadratic penalty, here per token."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """DRO: the policy gradient, and the square of the log-ratio, an unbounded penalty."""

    beta: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.05,
        description="Weight of the penalty. The paper's differs by task; this is the one of Tinker's documentation.",
    )


def dro(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return -(A logprob - beta / 2 (logprob - old logprob)^2). [tokens]

    The paper's square is of a whole sequence, and a learned value is taken from its reward; this is the form of verl and
    Tinker, per token and with an advantage.
    """
    penalty = config.beta / 2 * (batch.logprobs - batch.old_logprobs) ** 2
    return TokenLoss(per_token=penalty - batch.advantages * batch.logprobs)


LOSS = Loss(config=Config, function=dro)
