"""Group mean and batch standard deviation (Liu et al. 2025, Lite PPO, arXiv 2508.08221)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dagrpo.algorithms.advantages import Advantage
from dagrpo.algorithms.reward_batch import STD_EPSILON, RewardBatch, variance
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """The reward minus the mean of its group, divided by one standard deviation for the whole step."""

    std_of: Literal["rewards", "centred"] = Field(
        "rewards",
        description="rewards: the standard deviation of the rewards (Lite PPO); centred: of rewards minus group means (ScaleRL).",
    )


def batch_std(batch: RewardBatch, config: Config) -> torch.Tensor:
    """Return A = (r - mean_g) / (std + 1e-6), the standard deviation that of all trajectories of the step (n - 1). [trajectories]

    std_of: rewards as Lite PPO; centred as ScaleRL (Khatri et al. 2025, arXiv 2510.13786), which divides by that of the
    advantages. Unlike the group's own, it does not blow up a group in which one of many rewards differs.
    """
    centred = batch.rewards - batch.group_mean(batch.rewards)
    spread = variance(batch.rewards if config.std_of == "rewards" else centred).sqrt()
    return centred / (spread + STD_EPSILON)


ADVANTAGE = Advantage(config=Config, function=batch_std)
