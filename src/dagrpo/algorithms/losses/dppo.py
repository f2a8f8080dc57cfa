"""Divergence proximal policy optimisation (Qi et al. 2026, arXiv 2602.04879): bounds probabilities, not ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import TokenBatch, TokenLoss
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch

PUBLISHED = {"tv": 0.15, "kl": 0.05}


class Config(Choice):
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


def dppo(batch: TokenBatch, config: Config) -> TokenLoss:
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


LOSS = Loss(config=Config, function=dppo, aggregation="constant", anchored_on_rollout=lambda config: True)
