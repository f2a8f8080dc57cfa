"""REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740, section 3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagrpo.algorithms.advantages import Advantage
from dagrpo.algorithms.reward_batch import RewardBatch
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """RLOO: the reward minus the mean of the other rewards of the prompt's group."""


def rloo(batch: RewardBatch, config: Config) -> torch.Tensor:
    """Return A_i = r_i - mean of r_j, j != i, over each prompt's group of n: n / (n - 1) times r_i minus the group's mean.

    [trajectories]. 0 in a group of one.
    """
    sizes = batch.group_sizes
    return (batch.rewards - batch.group_mean(batch.rewards)) * sizes / (sizes - 1).clamp(min=1)


ADVANTAGE = Advantage(config=Config, function=rloo)
