"""Policy gradients times an importance weight without a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


# Clipped importance weights beside the policy gradient (CISPO: MiniMax-M1, arXiv 2506.13585, equations 4 and 5).
class Cispo(Choice):
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


def cispo(batch: TokenBatch, config: Cispo) -> TokenLoss:
    """Return -A sg(clip(rho, minimum, maximum)) logprob, rho = exp(logprob - anchor's), sg: without gradient. [tokens]"""
    anchor = batch.rollout_logprobs if config.anchor == "rollout" else batch.old_logprobs
    ratio = batch.ratio_to(anchor).detach()
    cut = ratio.clamp(config.minimum, config.maximum)
    return TokenLoss(
        per_token=-batch.advantages * cut * batch.logprobs, metrics={"clip_fraction": (cut != ratio).sum()}
    )


CISPO = Loss(config=Cispo, function=cispo, anchored_on_rollout=lambda config: config.anchor == "rollout")


# Direct double-sided importance sampling (GLM-5, arXiv 2602.15763, section 4.1): no token far from ratio 1.
class Dis(Choice):
    """DIS: the ratio to the engine's logprobs, without the policy before the step in between."""

    clip_low: Annotated[float, Field(gt=0, le=1)] = Field(
        0.2,
        description="A token counts where its ratio is above 1 - clip_low. The report gives no value; this is PPO's.",
    )
    clip_high: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.28, description="A token counts where its ratio is below 1 + clip_high. This is DAPO's value."
    )


def dis(batch: TokenBatch, config: Dis) -> TokenLoss:
    """Return -A f logprob, with rho = exp(logprob - rollout logprob). [tokens]

    f = sg(rho) where 1 - clip_low < rho < 1 + clip_high, else 0.
    """
    ratio = batch.ratio_to(batch.rollout_logprobs).detach()
    mask = (ratio > 1 - config.clip_low) & (ratio < 1 + config.clip_high)
    return TokenLoss(
        per_token=-batch.advantages * ratio * mask * batch.logprobs, metrics={"clip_fraction": (~mask).sum()}
    )


DIS = Loss(config=Dis, function=dis, anchored_on_rollout=lambda config: True)


# MiniRL: importance-weighted policy gradient with PPO's clip as a mask (Zheng et al. 2025, arXiv 2512.01374).
class Minirl(Choice):
    """MiniRL: weighted by the ratio to the engine's logprobs, masked by the ratio to the trainer's."""

    clip_low: Annotated[float, Field(gt=0, le=1)] = Field(
        0.2, description="A token with a negative advantage counts down to a ratio of 1 - clip_low."
    )
    clip_high: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.27, description="A token with a positive advantage counts up to a ratio of 1 + clip_high."
    )
    maximum: Annotated[float, Field(ge=1, le=1000)] = Field(
        5.0, description="No importance weight is larger than this."
    )


def minirl(batch: TokenBatch, config: Minirl) -> TokenLoss:
    """Return -A M sg(min(exp(logprob - rollout logprob), maximum)) logprob (section 4). [tokens]

    M is 0 where A > 0 and rho > 1 + clip_high, or A < 0 and rho < 1 - clip_low, with rho = exp(logprob - old logprob);
    else 1. The paper takes the reward less the mean of its group for A: advantage grpo with normalize_by_std false.
    """
    weight = batch.ratio_to(batch.rollout_logprobs).detach().clamp(max=config.maximum)
    ratio = batch.ratio_to(batch.old_logprobs).detach()
    too_high = (batch.advantages > 0) & (ratio > 1 + config.clip_high)
    too_low = (batch.advantages < 0) & (ratio < 1 - config.clip_low)
    masked = too_high | too_low
    return TokenLoss(
        per_token=-batch.advantages * weight * ~masked * batch.logprobs, metrics={"clip_fraction": masked.sum()}
    )


MINIRL = Loss(config=Minirl, function=minirl, aggregation="seq-mean-token-sum", anchored_on_rollout=lambda config: True)


PUBLISHED = {"tv": 0.15, "kl": 0.05}


# Divergence proximal policy optimisation (Qi et al. 2026, arXiv 2602.04879): bounds probabilities, not ratios.
class Dppo(Choice):
    """DPPO: a token whose probability is too far from the engine's is masked where the loss pushes it further."""

    divergence: Literal["tv", "kl"] = Field(
        "tv",
        description=(
            "Measure of the distance. tv: the difference of the token's two probabilities; kl: the KL divergence of the "
            "choices between the token and all others."
        ),
    )
    limit_low: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None,
        description="Largest distance downwards, where the advantage is not positive; null: as published, 0.15 (tv) or 0.05 (kl).",
    )
    limit_high: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None, description="Largest distance upwards, where the advantage is positive; null: as published."
    )
    maximum: Annotated[float, Field(ge=1, le=100_000)] = Field(
        20.0, description="No ratio is larger than this (section 5.4)."
    )

    @model_validator(mode="after")
    def _something_is_beyond_the_limits(self) -> Self:
        for key, limit in (("limit_low", self.limit_low), ("limit_high", self.limit_high)):
            if self.divergence == "tv" and limit is not None and limit > 1:
                raise UserError(
                    f"algorithm.loss.{key} ({limit}) is above 1, which no two probabilities differ by, so that it would limit "
                    "nothing: use a smaller one (dppo: 0.15), or algorithm.loss.divergence: kl"
                )
        return self


def dppo(batch: TokenBatch, config: Dppo) -> TokenLoss:
    """Return -A M sg(min(rho, maximum)) logprob, rho = exp(logprob - rollout logprob). [tokens]

    With the probabilities p of the policy and q of the engine, M is 0 where A > 0, p > q and their divergence is above
    limit_high, or where A < 0, p < q and it is above limit_low; else 1. The divergence of tv is |p - q|, that of kl
    q log(q / p) + (1 - q) log((1 - q) / (1 - p)).
    """
    published = PUBLISHED[config.divergence]
    low = published if config.limit_low is None else config.limit_low
    high = published if config.limit_high is None else config.limit_high
    logprobs = batch.logprobs.detach()
    p, q = logprobs.exp(), batch.rollout_logprobs.exp()
    divergence = (p - q).abs() if config.divergence == "tv" else _binary_kl(batch.rollout_logprobs, logprobs)
    pushed_up = batch.advantages > 0
    masked = (pushed_up & (p > q) & (divergence > high)) | ((batch.advantages < 0) & (p < q) & (divergence > low))
    weight = batch.ratio_to(batch.rollout_logprobs).detach().clamp(max=config.maximum)
    return TokenLoss(
        per_token=-batch.advantages * weight * ~masked * batch.logprobs, metrics={"clip_fraction": masked.sum()}
    )


def _binary_kl(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    smallest = 1e-8  # added to 1 - q and 1 - p, which are 0 where a token is certain; 1 - 1e-8 is 1 in float32
    not_q, not_p = (-each.expm1() for each in (log_q, log_p))
    return log_q.exp() * (log_q - log_p) + not_q * ((not_q + smallest) / (not_p + smallest)).log()


DPPO = Loss(config=Dppo, function=dppo, aggregation="constant", anchored_on_rollout=lambda config: True)
