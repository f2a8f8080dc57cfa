"""The clipped surrogate of PPO (Schulman et al. 2017, arXiv 1707.06347, equation 7), per token and to be minimised."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice


class Config(Choice):
    """PPO's clipped surrogate: the ratio of each token is clipped."""

    clip_low: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="The ratio is clipped below at 1 - clip_low."
    )
    clip_high: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.2, description="The ratio is clipped above at 1 + clip_high."
    )
    dual_clip: Annotated[float, Field(gt=1, le=1000)] | None = Field(
        None,
        description=(
            "Upper limit of the ratio where the advantage is negative, without a gradient beyond it; null: no limit, as in PPO. "
            "Dual clip: 3; the delta of INTELLECT-2: 4; DAPO's scripts: 10."
        ),
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.clip_high < self.clip_low:
            raise UserError(
                f"algorithm.loss.clip_high ({self.clip_high}) is below clip_low ({self.clip_low}): use clip_high >= clip_low "
                "(DAPO: 0.28, 0.2)"
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise UserError(
                f"algorithm.loss.dual_clip ({self.dual_clip}) is not above 1 + clip_high ({1 + self.clip_high}), where "
                "PPO clips already: use a larger one (dual clip: 3), or null"
            )
        return self


def ppo_clip(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)), rho = exp(logprob - old logprob). All [tokens].

    With dual_clip = c, where A < 0: no more than -A c (dual clip, Ye et al. 2020, arXiv 1912.09729). The
    two-sided clip of INTELLECT-2 (arXiv 2505.07291, section 4.1) puts min(rho, delta) in place of the first rho: for
    delta = c > 1 + clip_high that is the same function.

    Example: ratio 1.5, advantage +1, clip_high 0.2: loss -1.2, and the token counts as clipped.
    """
    ratio = batch.ratio_to(batch.old_logprobs)
    plain = -batch.advantages * ratio
    bounded = -batch.advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    loss = plain.maximum(bounded)
    metrics = {"clip_fraction": (bounded > plain).sum()}
    if config.dual_clip is None:
        return TokenLoss(per_token=loss, metrics=metrics)
    beyond = (batch.advantages < 0) & (ratio > config.dual_clip)
    loss = loss.where(~beyond, -batch.advantages * config.dual_clip)
    return TokenLoss(per_token=loss, metrics=metrics | {"dual_clip_fraction": beyond.sum()})


LOSS = Loss(config=Config, function=ppo_clip)
