"""Clipped importance weights beside the policy gradient (CISPO: MiniMax-M1, arXiv 2506.13585, equations 4 and 5)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """CISPO: the policy gradient times a clipped ratio without a gradient, so that every token counts."""

    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(
        5.0, description="No ratio is larger than this. MiniMax-M1 names no value; ScaleRL: 5; verl's example: 1.2."
    )
    minimum: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="No ratio is smaller than this. As published: 0, no bound."
    )
    anchor: Literal["old", "rollout"] = Field(
        "old",
        description=(
            "Denominator of the ratio. old: the trainer's logprobs at the beginning of the step; rollout: the engine's, which requires "
            "algorithm.correction none."
        ),
    )


def cispo(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return -A sg(clip(rho, minimum, maximum)) logprob, rho = exp(logprob - anchor's), sg: without gradient. [tokens]"""
    anchor = batch.rollout_logprobs if config.anchor == "rollout" else batch.old_logprobs
    ratio = batch.ratio_to(anchor).detach()
    cut = ratio.clamp(config.minimum, config.maximum)
    return TokenLoss(
        per_token=-batch.advantages * cut * batch.logprobs, metrics={"clip_fraction": (cut != ratio).sum()}
    )


LOSS = Loss(config=Config, function=cispo, anchored_on_rollout=lambda config: config.anchor == "rollout")
