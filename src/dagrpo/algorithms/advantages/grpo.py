"""Group-relative advantages (Shao et al. 2024, DeepSeekMath, arXiv 2402.03300, section 4.1.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dagrpo.algorithms.advantages import Advantage
from dagrpo.params.plugged import Choice

if TYPE_CHECKING:
    import torch

EPSILON = 1e-6


class Config(Choice):
    """GRPO: the reward minus the mean of the prompt's group."""

    normalize_by_std: bool = Field(
        True, description="Divide by the group's standard deviation; Dr. GRPO does not, and has aggregation constant."
    )


def grpo(rewards: torch.Tensor, group_size: int, config: Config) -> torch.Tensor:
    """A = (r - mean_g) / (std_g + 1e-6) over each prompt's group; without the division as Dr. GRPO (arXiv 2503.20783).

    rewards: [prompts * group_size], the completions of one prompt next to each other. The standard deviation is the
    sample's (n - 1). A group of equal rewards has advantage 0: nothing is learned from it.
    """
    assert group_size >= 2, "the schema refuses groups of one"
    # In double: the mean of eight float32 rewards of 0.3 is off by 3e-8, which a standard deviation of 0 blows up to 0.03.
    groups = rewards.double().view(-1, group_size)  # [prompts, group]
    centred = groups - groups.mean(dim=1, keepdim=True)
    if config.normalize_by_std:
        centred = centred / (groups.std(dim=1, keepdim=True) + EPSILON)
    return centred.reshape(-1).float()


ADVANTAGE = Advantage(config=Config, function=grpo)
