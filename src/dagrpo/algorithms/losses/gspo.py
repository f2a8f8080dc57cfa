"""Group sequence policy optimisation (Zheng et al. 2025, arXiv 2507.18071): one importance ratio per sequence."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import LOG_RATIO_LIMIT, TokenBatch, TokenLoss
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice

WIDEST = (
    0.1  # wider bounds are those of a token: the geometric mean over a long sequence hardly ever gets that far from 1
)


class Config(Choice):
    """GSPO: the ratio of each sequence, the geometric mean of its tokens' ratios, is clipped."""

    clip_low: Annotated[float, Field(gt=0, le=1000)] = Field(
        3e-4, description="The ratio is clipped below at 1 - clip_low."
    )
    clip_high: Annotated[float, Field(gt=0, le=1000)] = Field(
        4e-4, description="The ratio is clipped above at 1 + clip_high."
    )

    @model_validator(mode="after")
    def _clip_is_for_a_sequence(self) -> Self:
        if max(self.clip_low, self.clip_high) > WIDEST:
            low, high = (type(self).model_fields[key].default for key in ("clip_low", "clip_high"))
            raise UserError(
                f"algorithm.loss.clip_low and clip_high are {self.clip_low} and {self.clip_high}, bounds for the ratio of "
                f"a token: the ratio of {self.name} is a mean over a sequence, so delete them for {low} and "
                f"{high}, or set both to at most {WIDEST}"
            )
        return self


def gspo(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)) on each token, with the sequence's ratio s (equations 5 and 7).

    s = exp(mean over the sequence's tokens of logprob - old logprob). The value of s on a token is that of its sequence
    and its gradient is s times that of the token's own logprob (the stop-gradient form of equation 14), so that the mean
    over tokens has the gradient of the sequence. Of several turns or samples the sequence is the whole trajectory.
    """
    log_ratio = batch.mean_of_sequence((batch.logprobs - batch.old_logprobs).detach())
    own = batch.logprobs - batch.logprobs.detach()  # 0, with the gradient of the token's logprob
    ratio = (log_ratio + own).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    plain = -batch.advantages * ratio
    bounded = -batch.advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    return TokenLoss(per_token=plain.maximum(bounded), metrics={"clip_fraction": (bounded > plain).sum()})


LOSS = Loss(config=Config, function=gspo, aggregation="seq-mean-token-mean", same_with={"seq-mean-token-sum": "luspo"})
