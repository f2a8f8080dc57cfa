"""Maximum likelihood RL (Tajwar et al. 2026, MaxRL, arXiv 2602.02710)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagrpo.algorithms.advantages import BELOW_0, Advantage
from dagrpo.algorithms.reward_batch import RewardBatch
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """The reward minus the mean of its group, divided by that mean. For rewards that are never negative, such as 0 and 1."""


def maxrl(batch: RewardBatch, config: Config) -> torch.Tensor:
    """Return A = (r - mean_g) / mean_g, and 0 where the mean is not above 0. [trajectories]

    With rewards of 0 and 1 a prompt weighs 1 / its pass rate, as in the gradient of the logarithm of that rate. Rewards
    of both signs could make a mean near 0, and with it advantages without a bound, and nothing would be learned from
    negative ones: a step with a reward below 0 is refused.
    """
    mean = batch.group_mean(batch.rewards)
    positive = mean > -BELOW_0  # a division by what rounding has left would make it a full-size advantage
    return ((batch.rewards - mean) / mean.masked_fill(~positive, 1.0)).masked_fill(~positive, 0.0)


def refuses_penalty(config: Config) -> str:
    """Return why a divergence in the reward is refused: it can make rewards negative."""
    return "divides by the mean of rewards less the divergence, which could be negative"


ADVANTAGE = Advantage(config=Config, function=maxrl, never_negative=True, refuses_penalty=refuses_penalty)
