"""Losses with one importance ratio per sequence."""

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


# Group sequence policy optimisation (Zheng et al. 2025, arXiv 2507.18071): one importance ratio per sequence.
class Gspo(Choice):
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


def gspo(batch: TokenBatch, config: Gspo) -> TokenLoss:
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


GSPO = Loss(config=Gspo, function=gspo, aggregation="seq-mean-token-mean", same_with={"seq-mean-token-sum": "luspo"})


# Length-unbiased sequence policy optimisation (Liu et al. 2026, arXiv 2602.05261): GSPO times the length.
class Luspo(Gspo):
    """LUSPO: as GSPO, but a long sequence counts for more than a short one."""

    clip_low: Annotated[float, Field(gt=0, le=1000)] = Field(
        2e-3, description="The ratio is clipped below at 1 - clip_low."
    )
    clip_high: Annotated[float, Field(gt=0, le=1000)] = Field(
        2.5e-3, description="The ratio is clipped above at 1 + clip_high."
    )


# The length is the number of tokens that the sum adds up: each has the loss of its sequence.
LUSPO = Loss(
    config=Luspo,
    function=gspo,
    aggregation="seq-mean-token-sum",
    same_with={"seq-mean-token-mean": "gspo"},
)


# Geometric-mean policy optimisation (Zhao et al. 2025, arXiv 2507.20673): the mean over a sequence of clipped ratios.
class Gmpo(Choice):
    """GMPO: each token's log-ratio is clipped on the side that its advantage pushes to; then comes the mean."""

    clip_low: Annotated[float, Field(gt=0, le=20)] = Field(
        0.4, description="The logarithm of the ratio is clipped below at -clip_low where the advantage is negative."
    )
    clip_high: Annotated[float, Field(gt=0, le=20)] = Field(
        0.4, description="It is clipped above at clip_high where the advantage is positive."
    )


def gmpo(batch: TokenBatch, config: Gmpo) -> TokenLoss:
    """Return -A s on each token, with s = exp(mean over the sequence's tokens of the clipped logprob - old logprob). [tokens]

    The value of s on a token is that of its sequence and its gradient is s times that of the token's own clipped
    log-ratio, as in gspo, so that the mean over tokens has the gradient of the published sequence loss.
    """
    log_ratio = batch.logprobs - batch.old_logprobs
    bounded = log_ratio.clamp(-config.clip_low, config.clip_high)
    clipped = log_ratio.minimum(bounded).where(batch.advantages > 0, log_ratio.maximum(bounded))
    own = clipped - clipped.detach()  # 0, with the gradient of the token's log-ratio
    ratio = (batch.mean_of_sequence(clipped.detach()) + own).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return TokenLoss(per_token=-batch.advantages * ratio, metrics={"clip_fraction": (clipped != log_ratio).sum()})


GMPO = Loss(config=Gmpo, function=gmpo, aggregation="seq-mean-token-mean")


Power = Annotated[float, Field(ge=0, le=1000)]
Decay = Annotated[float, Field(gt=0, le=1000)]  # at 0 the weight would grow with the ratio without bound


# Variational sequence-level soft policy optimisation (Shen et al. 2026, arXiv 2602.10693): smooth weights.
class Vespo(Choice):
    """VESPO: the further a sequence's ratio is from 1, the less it counts; the ratio is the product over its tokens."""

    power_positive_advantage: Power = Field(
        2.0, description="How fast the weight falls below a ratio of 1, where the advantage is not negative."
    )
    decay_positive_advantage: Decay = Field(
        3.0, description="How fast the weight falls above a ratio of 1, where the advantage is not negative."
    )
    power_negative_advantage: Power = Field(
        3.0, description="How fast the weight falls below a ratio of 1, where the advantage is negative."
    )
    decay_negative_advantage: Decay = Field(
        2.0, description="How fast the weight falls above a ratio of 1, where the advantage is negative."
    )


def vespo(batch: TokenBatch, config: Vespo) -> TokenLoss:
    """Return -A sg(W^c1 exp(c2 (1 - W))) logprob, with the ratio W of the whole sequence (equation 20). [tokens]

    W = exp(sum over the sequence's tokens of logprob - rollout logprob). c1 is the power and c2 the decay, by the sign of A.
    No weight is above e^20.
    """
    log_ratio = batch.sum_of_sequence((batch.logprobs - batch.rollout_logprobs).detach())
    log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    negative = batch.advantages < 0
    power = log_ratio.new_full((), config.power_negative_advantage).where(negative, config.power_positive_advantage)
    decay = log_ratio.new_full((), config.decay_negative_advantage).where(negative, config.decay_positive_advantage)
    weight = (power * log_ratio + decay * (1 - log_ratio.exp())).clamp(max=LOG_RATIO_LIMIT).exp()
    return TokenLoss(per_token=-batch.advantages * weight * batch.logprobs, metrics={"sequence_weight": weight.sum()})


VESPO = Loss(config=Vespo, function=vespo, anchored_on_rollout=lambda config: True)
