"""Group-relative advantages (Shao et al. 2024, DeepSeekMath, arXiv 2402.03300, section 4.1.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dagrpo.algorithms.advantages import Advantage
from dagrpo.algorithms.reward_batch import STD_EPSILON, RewardBatch
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """GRPO: the reward minus the mean of the prompt's group."""

    normalize_by_std: bool = Field(
        True, description="Divide by the group's standard deviation; Dr. GRPO does not, and uses aggregation constant."
    )


def grpo(batch: RewardBatch, config: Config) -> torch.Tensor:
    """Return A = (r - mean_g) / (std_g + 1e-6) over each prompt's group; without the division as Dr. GRPO (arXiv 2503.20783).

    [trajectories]. The standard deviation is the sample's (n - 1). A group of equal rewards has advantage 0: nothing is
    learned from it.
    """
    centred = batch.rewards - batch.group_mean(batch.rewards)
    return centred / (batch.group_std(batch.rewards) + STD_EPSILON) if config.normalize_by_std else centred


def refuses_penalty(config: Config) -> str | None:
    """Return the reason: the divergence, however small, is all that differs in a group of equal rewards."""
    if not config.normalize_by_std:
        return None
    return (
        "makes a full-size advantage of the divergence alone in groups of equal rewards, unless "
        "algorithm.advantage.normalize_by_std is false"
    )


ADVANTAGE = Advantage(config=Config, function=grpo, refuses_penalty=refuses_penalty)
