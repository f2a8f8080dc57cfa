"""Rewards of one step, by prompt group: the input of advantage estimators.

On the CPU and in double: eight float32 rewards of 0.3 have a mean that is off by 3e-8, which a division by a standard
deviation of 0 blows up to 0.03. Nothing here imports torch when it is imported: params.yaml is checked on every `snakemake -n`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

STD_EPSILON = 1e-6  # added to the standard deviation that rewards are divided by
WHITENING_EPSILON = 1e-8  # added to a variance


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTokens:
    """The trainer's figures of each token before the update, without gradients. All [tokens] float64."""

    logprobs: torch.Tensor  # of the policy before the step
    collision: torch.Tensor  # the sum over the vocabulary of the squared probabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBatch:
    """The trajectories of a step that are learned from, those of one prompt next to each other.

    A token is one that the policy wrote. Text of tools and users between two turns is left out, so that every recursion over
    tokens goes from one turn straight to the next.
    """

    rewards: torch.Tensor  # [trajectories] float64; less the sum of the penalties of its tokens
    group: torch.Tensor  # [trajectories] int64, from 0, rising: which of the prompts
    groups: int  # how many prompts there are
    trajectory: torch.Tensor  # [tokens] int64, from 0, rising: which trajectory wrote it
    # [trajectories] float64 each, times its weight; without the penalties
    components: Mapping[str, torch.Tensor] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)  # of the components, by the same names
    penalty: torch.Tensor | None = None  # [tokens] float64, the divergence taken from the reward; None without one
    policy: PolicyTokens | None = None  # where the estimator needs it
    # [prompts] float64, of the greedy completion, where the estimator needs it
    greedy_rewards: torch.Tensor | None = None

    @property
    def lengths(self) -> torch.Tensor:
        """Return the number of tokens of each trajectory. [trajectories] int64"""
        return self.trajectory.bincount(minlength=len(self.rewards))

    @property
    def position(self) -> torch.Tensor:
        """Return each token's index within its trajectory, from 0. [tokens] int64"""
        starts = self.lengths.cumsum(0) - self.lengths
        return self.trajectory.new_ones(len(self.trajectory)).cumsum(0) - 1 - starts[self.trajectory]

    @property
    def group_sizes(self) -> torch.Tensor:
        """Return the size of each trajectory's group. [trajectories] float64"""
        return self.group.bincount(minlength=self.groups)[self.group].double()

    def group_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over its group for each trajectory. [trajectories] -> [trajectories]"""
        return values.new_zeros(self.groups).index_add(0, self.group, values)[self.group]

    def group_mean(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean over its group for each trajectory. [trajectories] -> [trajectories]"""
        return self.group_sum(values) / self.group_sizes

    def group_max(self, values: torch.Tensor) -> torch.Tensor:
        """Return the maximum over its group for each trajectory. [trajectories] -> [trajectories]"""
        lowest = values.new_full((self.groups,), float("-inf"))
        return lowest.scatter_reduce(0, self.group, values, "amax")[self.group]

    def group_std(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sample standard deviation (n - 1) over its group for each trajectory, 0 for a group of one."""
        centred = values - self.group_mean(values)
        return (self.group_sum(centred**2) / (self.group_sizes - 1).clamp(min=1)).sqrt()

    def on_tokens(self, values: torch.Tensor) -> torch.Tensor:
        """Return each trajectory's value on all of its tokens. [trajectories] -> [tokens]"""
        return values[self.trajectory]

    def token_rewards(self) -> torch.Tensor:
        """Return the reward on each trajectory's last token, less each token's penalty. [tokens]"""
        rewards = self.rewards.new_zeros(len(self.trajectory)) if self.penalty is None else -self.penalty
        total = self.rewards if self.penalty is None else self.rewards + self._sum_of_trajectory(self.penalty)
        return rewards.index_add(0, self.lengths.cumsum(0) - 1, total)

    def returns(self, gamma: float) -> torch.Tensor:
        """Return G_t = r_t + gamma * G_(t + 1) over each trajectory's tokens, in the order in which they were written. [tokens]"""
        position = self.position
        longest = int(self.lengths.max())
        rows = self.rewards.new_zeros(longest, len(self.rewards))
        rows[position, self.trajectory] = self.token_rewards()
        for t in range(longest - 2, -1, -1):
            rows[t] += gamma * rows[t + 1]
        return rows[position, self.trajectory]

    def _sum_of_trajectory(self, values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(len(self.rewards)).index_add(0, self.trajectory, values)


def variance(values: torch.Tensor) -> torch.Tensor:
    """Return the sample variance (n - 1), 0 of a single value."""
    return ((values - values.mean()) ** 2).sum() / max(len(values) - 1, 1)


def whitened(values: torch.Tensor) -> torch.Tensor:
    """Return the values less their mean, divided by sqrt(their variance + 1e-8): equal values give 0. Same shape."""
    return (values - values.mean()) / (variance(values) + WHITENING_EPSILON).sqrt()
