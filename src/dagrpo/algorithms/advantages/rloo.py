"""REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740, section 3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagrpo.algorithms.advantages import Advantage
from dagrpo.params.plugged import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """RLOO: the reward minus the mean of the other rewards of the prompt's group."""


def rloo(rewards: torch.Tensor, group_size: int, config: Config) -> torch.Tensor:
    """A_i = r_i - mean of r_j, j != i, over each prompt's group of n: n / (n - 1) times r_i minus the group's mean.

    rewards: [prompts * group_size], the completions of one prompt next to each other.
    """
    assert group_size >= 2, "the schema refuses groups of one"
    groups = rewards.double().view(-1, group_size)  # [prompts, group]
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred * group_size / (group_size - 1)).reshape(-1).float()


ADVANTAGE = Advantage(config=Config, function=rloo)
