"""KL-Cov: penalises tokens with large logprob-advantage covariance (Cui et al. 2025, arXiv 2505.22617)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dagrpo.algorithms.losses import Loss
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch, TokenLoss
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """The policy gradient with a ratio, and a penalty on the tokens with the largest covariance of logprob and advantage."""

    share: Annotated[float, Field(gt=0, le=1)] = Field(
        2e-4,
        description=(
            "Share of a mini-batch's tokens that the penalty applies to, at least one token. The paper: 0.0002 for 32 billion "
            "parameters, 0.002 for 7 billion."
        ),
    )
    coefficient: Annotated[float, Field(gt=0, le=1000)] = Field(1.0, description="Weight of the penalty.")


def select(batch: MiniBatch, config: Config) -> torch.Tensor:
    """Return 1 on the tokens with the largest covariances, else 0; ties: as torch.topk picks. [tokens]"""
    covariances = batch.covariances
    largest = covariances.topk(batch.count_of(config.share)).indices
    return batch.logprobs.new_zeros(len(covariances)).index_fill(0, largest, 1.0)


def kl_cov(batch: TokenBatch, config: Config) -> TokenLoss:
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


LOSS = Loss(config=Config, function=kl_cov, select=select, needs_later_updates=True)
