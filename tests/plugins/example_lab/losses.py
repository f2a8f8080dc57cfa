"""A loss of our own: the policy gradient without a ratio, its advantages raised to a power."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice
from dagrpo.trainer.config.training import Training


class Config(Choice):
    """The policy gradient, with small advantages made smaller."""

    power: Annotated[float, Field(ge=1)] = Field(1.0, description="Power of the advantage; its sign stays.")

    def check(self, training: Training) -> None:
        """Refuse later updates of a step, which nothing corrects without a ratio."""
        if training.mini_batches > 1:
            raise UserError("the loss tilted has no ratio to correct later updates: set training.mini_batches to 1")


def policy_gradient(batch: TokenBatch, config: Config) -> TokenLoss:
    """-sign(A) |A|^power times the logprob. [tokens]"""
    scaled = batch.advantages.sign() * batch.advantages.abs() ** config.power
    return TokenLoss(per_token=-scaled * batch.logprobs, metrics={"scaled_advantage": scaled.sum()})


tilted = Loss(config=Config, function=policy_gradient, aggregation="seq-mean-token-sum")
