"""A baseline for each token (Li et al. 2026, The Optimal Token Baseline, arXiv 2602.07078)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dagrpo.algorithms.advantages import Advantage
from dagrpo.algorithms.reward_batch import RewardBatch
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch

EPSILON = 1e-8


class Config(Choice):
    """The return of each token minus a mean over its group, in which trajectories with large gradients so far weigh more."""

    learns_lone_tail: bool = Field(
        False,
        description=(
            "Use no baseline for the last tokens of a completion that is longer than all others of its group. If false, their baseline "
            "is their own return, and nothing is learned from them."
        ),
    )


def optimal_token_baseline(batch: RewardBatch, config: Config) -> torch.Tensor:
    """Return A_t = G_t - sum_i(G_t W_t) / sum_i(W_t) over the trajectories i of the group that have a token t. [tokens]

    W_t is the sum of 1 - 2 pi_j + sum(pi^2) over the tokens j up to t: the squared norm of a token's gradient by its
    logits, pi being the probability of the sampled token. Only the policy's own tokens are counted, not text between its
    turns. With learns_lone_tail, equal rewards teach something. Differs from the paper: no correction between engine and
    trainer enters the weights, squared.
    """
    assert batch.policy is not None, "the trainer computes it for an estimator that needs it"
    position, trajectories = batch.position, len(batch.rewards)
    longest = int(batch.lengths.max())
    norms = (1 - 2 * batch.policy.logprobs.exp() + batch.policy.collision).clamp(min=0)
    rows = norms.new_zeros(longest, trajectories)
    rows[position, batch.trajectory] = norms
    energy = rows.cumsum(0)[position, batch.trajectory]

    place = position * batch.groups + batch.group[batch.trajectory]  # equal for tokens that are compared

    def total(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(longest * batch.groups).index_add(0, place, values)[place]

    returns = batch.returns(1.0)
    others = total(energy.new_ones(len(energy)))
    centred = returns - total(returns) / others  # so that equal returns have a baseline without any rounding
    advantages = centred - total(centred * energy) / (total(energy) + EPSILON)
    return returns.where(others == 1, advantages) if config.learns_lone_tail else advantages


ADVANTAGE = Advantage(
    config=Config,
    function=optimal_token_baseline,
    needs_policy=True,
    learns_from_equal=lambda config: config.learns_lone_tail,
)
