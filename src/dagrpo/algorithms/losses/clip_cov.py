"""Clip-Cov: drops a few tokens with large logprob-advantage covariance (Cui et al. 2025, arXiv 2505.22617)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from dagrpo.algorithms.losses import Loss, ppo_clip
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch, TokenLoss
from dagrpo.core.errors import UserError

if TYPE_CHECKING:
    import torch


Covariance = Annotated[float, Field(ge=-1e6, le=1e6)]


class Config(ppo_clip.Config):
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


def select(batch: MiniBatch, config: Config) -> torch.Tensor:
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


def clip_cov(batch: TokenBatch, config: Config) -> TokenLoss:
    """Return the loss of ppo_clip, and 0 on selected tokens. [tokens]"""
    assert batch.selected is not None
    loss = ppo_clip.ppo_clip(batch, config)
    return TokenLoss(
        per_token=loss.per_token * (1 - batch.selected),
        metrics={**loss.metrics, "selected_fraction": batch.selected.sum()},
    )


LOSS = Loss(config=Config, function=clip_cov, select=select)
