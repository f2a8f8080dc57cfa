"""Losses that treat a few selected tokens of a mini-batch apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from dagrpo.algorithms.losses import Loss, ppo_clip
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch, TokenLoss
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


Covariance = Annotated[float, Field(ge=-1e6, le=1e6)]


# Clip-Cov: drops a few tokens with large logprob-advantage covariance (Cui et al. 2025, arXiv 2505.22617).
class ClipCov(ppo_clip.Config):
    """PPO's clipped surrogate, less a few tokens whose covariance of logprob and advantage lies in a band."""

    share: Annotated[float, Field(gt=0, le=1)] = Field(
        2e-4, description="Share of a mini-batch's tokens to leave out, drawn from the band; at least one token."
    )
    covariance_low: Covariance = Field(
        1.0, description="Lower end of the band: a token that may be left out has a larger covariance."
    )
    covariance_high: Covariance = Field(5.0, description="Upper end of the band.")

    @model_validator(mode="after")
    def _band_is_ordered(self) -> Self:
        if self.covariance_high <= self.covariance_low:
            raise UserError(
                f"algorithm.loss.covariance_high ({self.covariance_high}) is not above covariance_low "
                f"({self.covariance_low}): no token lies between them (as published: 5, 1)"
            )
        return self


def draw_from_band(batch: MiniBatch, config: ClipCov) -> torch.Tensor:
    """Return 1 on the tokens that are left out, else 0. [tokens]

    They are drawn under the policy before the step, from the band in the order of covariances: the order of the sequences
    matters only where some of these are equal. The published code draws in each micro-batch, under the policy at that
    moment, and not from tokens that the ratio has clipped, which have no gradient anyway.
    """
    import torch

    covariances = batch.covariances
    band = ((covariances > config.covariance_low) & (covariances < config.covariance_high)).nonzero().flatten()
    band = band[covariances[band].argsort(stable=True)]
    order = torch.randperm(len(band), generator=torch.Generator().manual_seed(batch.seed))
    chosen = order[: batch.count_of(config.share)]
    return torch.zeros_like(batch.logprobs).index_fill(0, band[chosen], 1.0)


def clip_cov(batch: TokenBatch, config: ClipCov) -> TokenLoss:
    """Return the loss of ppo_clip, and 0 on selected tokens. [tokens]"""
    assert batch.selected is not None
    loss = ppo_clip.ppo_clip(batch, config)
    return TokenLoss(
        per_token=loss.per_token * (1 - batch.selected),
        metrics={**loss.metrics, "selected_fraction": batch.selected.sum()},
    )


CLIP_COV = Loss(config=ClipCov, function=clip_cov, select=draw_from_band)


# KL-Cov: penalises tokens with large logprob-advantage covariance (Cui et al. 2025, arXiv 2505.22617).
class KlCov(Choice):
    """The policy gradient with a ratio, and a penalty on the tokens with the largest covariance of logprob and advantage."""

    share: Annotated[float, Field(gt=0, le=1)] = Field(
        2e-4,
        description=(
            "Share of a mini-batch's tokens that the penalty applies to, at least one token. The paper: 0.0002 for 32 billion "
            "parameters, 0.002 for 7 billion."
        ),
    )
    coefficient: Annotated[float, Field(gt=0, le=1000)] = Field(1.0, description="Weight of the penalty.")


def select_largest(batch: MiniBatch, config: KlCov) -> torch.Tensor:
    """Return 1 on the tokens with the largest covariances, else 0; ties: as torch.topk picks. [tokens]"""
    covariances = batch.covariances
    largest = covariances.topk(batch.count_of(config.share)).indices
    return batch.logprobs.new_zeros(len(covariances)).index_fill(0, largest, 1.0)


def kl_cov(batch: TokenBatch, config: KlCov) -> TokenLoss:
    """Return -A rho, and on selected tokens + coefficient |logprob - old logprob|; rho = exp(logprob - old logprob). [tokens]

    The penalty has no gradient where the two are equal: it holds back the later updates of a step, not the first. So
    training.mini_batches is at least 2.
    """
    assert batch.selected is not None
    penalty = config.coefficient * (batch.logprobs - batch.old_logprobs).abs()
    return TokenLoss(
        per_token=-batch.advantages * batch.ratio_to(batch.old_logprobs) + batch.selected * penalty,
        metrics={"selected_fraction": batch.selected.sum()},
    )


KL_COV = Loss(config=KlCov, function=kl_cov, select=select_largest, needs_later_updates=True)


# PPO's clipped surrogate on the tokens of highest entropy (Wang et al. 2025, arXiv 2506.01939).
class TopEntropy(ppo_clip.Config):
    """PPO's clipped surrogate on the tokens with the highest entropy."""

    clip_high: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.28, description="The ratio is clipped above at 1 + clip_high."
    )
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.2, description="Share of a mini-batch's tokens that count: those with the highest entropy."
    )


def select_least_sure(batch: MiniBatch, config: TopEntropy) -> torch.Tensor:
    """Return 1 on the tokens whose entropy is at least the quantile 1 - share over the mini-batch, else 0. [tokens]"""
    rank = math.ceil(round((1 - config.share) * (len(batch.entropy) - 1), 6))
    return (batch.entropy >= batch.entropy.kthvalue(rank + 1).values).to(batch.entropy.dtype)


def top_entropy(batch: TokenBatch, config: TopEntropy) -> TokenLoss:
    """Return the loss of ppo_clip on selected tokens, and 0 on the others, which still count as tokens. [tokens]"""
    assert batch.selected is not None
    loss = ppo_clip.ppo_clip(batch, config)
    return TokenLoss(
        per_token=loss.per_token * batch.selected, metrics={**loss.metrics, "selected_fraction": batch.selected.sum()}
    )


TOP_ENTROPY = Loss(config=TopEntropy, function=top_entropy, select=select_least_sure)
