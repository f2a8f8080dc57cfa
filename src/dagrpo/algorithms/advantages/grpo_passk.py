"""Advantages of pass@k, k being the whole group (Tang et al. 2025, arXiv 2503.19595)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dagrpo.algorithms.advantages import Advantage, grpo
from dagrpo.algorithms.reward_batch import STD_EPSILON, RewardBatch

if TYPE_CHECKING:
    import torch


class Config(grpo.Config):
    """Only the best completion of a group has an advantage: how far its reward is ahead of the second best."""

    normalize_by_std: bool = Field(True, description="Divide by the group's standard deviation, as GRPO does.")


def grpo_passk(batch: RewardBatch, config: Config) -> torch.Tensor:
    """Return r_max - r_second, or that / (std_g + 1e-6), for the best of each group and 0 for the others. [trajectories]

    This is what the group's best reward loses without that completion: 0 where two are equally good. The advantages of a
    group do not add up to 0, and no completion is ever pushed down.
    """
    rewards = batch.rewards
    best = rewards == batch.group_max(rewards)
    second = batch.group_max(rewards.masked_fill(best, float("-inf")))
    alone = best & (batch.group_sum(best.double()) == 1) & (batch.group_sizes > 1)
    ahead = (rewards - second).masked_fill(~alone, 0.0)
    return ahead / (batch.group_std(rewards) + STD_EPSILON) if config.normalize_by_std else ahead


ADVANTAGE = Advantage(config=Config, function=grpo_passk, refuses_penalty=grpo.refuses_penalty)
