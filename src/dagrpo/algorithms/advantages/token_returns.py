"""Estimators with another advantage on each token, or over the whole step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dagrpo.algorithms.advantages import Advantage, OverBatch
from dagrpo.algorithms.reward_batch import RewardBatch, whitened
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


# REINFORCE++: returns of tokens, normalised over the batch (Hu et al. 2025, arXiv 2501.03262).
class ReinforcePlusPlus(OverBatch):
    """REINFORCE++: the discounted return of each token, whitened over all tokens of the step."""

    gamma: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="Discount per token.")


def reinforce_plus_plus(batch: RewardBatch, config: ReinforcePlusPlus) -> torch.Tensor:
    """Return A_t = (G_t - mean) / sqrt(variance + 1e-8) over all tokens of the step, G_t = r_t + gamma * G_(t + 1). [tokens]

    Published with a k1 divergence in the reward (algorithm.kl). It compares across prompts, not within a group: equal
    rewards of one group teach something where other groups have others. With gamma below 1, equal rewards teach length.
    The next token is the policy's own next one, whatever a tool said in between.
    """
    return whitened(batch.returns(config.gamma))


REINFORCE_PLUS_PLUS = Advantage(
    config=ReinforcePlusPlus, function=reinforce_plus_plus, compares=False, learns_from_equal=lambda config: True
)


# REINFORCE++ with the group's mean as baseline (Hu et al. 2025, arXiv 2501.03262).
class ReinforcePlusPlusBaseline(OverBatch):
    """The reward minus the mean of its group, whitened over all tokens of the step."""


def reinforce_plus_plus_baseline(batch: RewardBatch, config: ReinforcePlusPlusBaseline) -> torch.Tensor:
    """Return A = (a - mean) / sqrt(variance + 1e-8) over all tokens of the step, of a = r - mean_g on each of them. [tokens]

    Long trajectories weigh more in that mean. Where they are better or worse than short ones it is not 0, and then a
    group of equal rewards is moved, too.
    """
    return whitened(batch.on_tokens(batch.rewards - batch.group_mean(batch.rewards)))


REINFORCE_PLUS_PLUS_BASELINE = Advantage(config=ReinforcePlusPlusBaseline, function=reinforce_plus_plus_baseline)


# ReMax: the greedy completion's reward as baseline (Li et al. 2023, arXiv 2310.10505, algorithm 1).
class Remax(Choice):
    """The reward minus that of a greedy completion of the same prompt, which is sampled for this alone."""


def remax(batch: RewardBatch, config: Remax) -> torch.Tensor:
    """Return A_t = G_t - r_greedy, G_t the sum of the rewards from token t on: r, less the penalties before its end. [tokens]

    Rewards that are equal to each other, but not to the greedy completion's, teach something.
    """
    assert batch.greedy_rewards is not None, "sampled for an estimator that needs them"
    return batch.returns(1.0) - batch.on_tokens(batch.greedy_rewards[batch.group])


REMAX = Advantage(
    config=Remax, function=remax, compares=False, needs_greedy=True, learns_from_equal=lambda config: True
)


EPSILON = 1e-8


# A baseline for each token (Li et al. 2026, The Optimal Token Baseline, arXiv 2602.07078).
class OptimalTokenBaseline(Choice):
    """The return of each token minus a mean over its group, in which trajectories with large gradients so far weigh more."""

    learns_lone_tail: bool = Field(
        False,
        description=(
            "Use no baseline for the last tokens of a completion that is longer than all others of its group. If false, their baseline "
            "is their own return, and nothing is learned from them."
        ),
    )


def optimal_token_baseline(batch: RewardBatch, config: OptimalTokenBaseline) -> torch.Tensor:
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


OPTIMAL_TOKEN_BASELINE = Advantage(
    config=OptimalTokenBaseline,
    function=optimal_token_baseline,
    needs_policy=True,
    learns_from_equal=lambda config: config.learns_lone_tail,
)
