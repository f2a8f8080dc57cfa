"""An advantage of our own: the reward minus the best of its group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagrpo.algorithms.advantages import Advantage
from dagrpo.algorithms.reward_batch import RewardBatch
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """The reward minus the best reward of the prompt's group."""


def below_best(batch: RewardBatch, config: Config) -> torch.Tensor:
    """r - max_g, never above 0. [trajectories]"""
    return batch.rewards - batch.group_max(batch.rewards)


best = Advantage(config=Config, function=below_best)
