"""Direct double-sided importance sampling (GLM-5, arXiv 2602.15763, section 4.1): no token far from ratio 1."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """DIS: the ratio to the engine's logprobs, without the policy before the step in between."""

    clip_low: Annotated[float, Field(gt=0, le=1)] = Field(
        0.2,
        description="A token counts where its ratio is above 1 - clip_low. The report gives no value; this is PPO's.",
    )
    clip_high: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.28, description="A token counts where its ratio is below 1 + clip_high. This is DAPO's value."
    )


def dis(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return -A f logprob, with rho = exp(logprob - rollout logprob). [tokens]

    f = sg(rho) where 1 - clip_low < rho < 1 + clip_high, else 0.
    """
    ratio = batch.ratio_to(batch.rollout_logprobs).detach()
    mask = (ratio > 1 - config.clip_low) & (ratio < 1 + config.clip_high)
    return TokenLoss(
        per_token=-batch.advantages * ratio * mask * batch.logprobs, metrics={"clip_fraction": (~mask).sum()}
    )


LOSS = Loss(config=Config, function=dis, anchored_on_rollout=lambda config: True)
