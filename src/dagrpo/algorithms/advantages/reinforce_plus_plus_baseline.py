"""REINFORCE++ with the group's mean as baseline (Hu et al. 2025, arXiv 2501.03262)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagrpo.algorithms.advantages import Advantage
from dagrpo.algorithms.reward_batch import RewardBatch, whitened
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """The reward minus the mean of its group, whitened over all tokens of the step."""


def reinforce_plus_plus_baseline(batch: RewardBatch, config: Config) -> torch.Tensor:
    """Return A = (a - mean) / sqrt(variance + 1e-8) over all tokens of the step, of a = r - mean_g on each of them. [tokens]

    Long trajectories weigh more in that mean. Where they are better or worse than short ones it is not 0, and then a
    group of equal rewards is moved, too.
    """
    return whitened(batch.on_tokens(batch.rewards - batch.group_mean(batch.rewards)))


ADVANTAGE = Advantage(config=Config, function=reinforce_plus_plus_baseline)
