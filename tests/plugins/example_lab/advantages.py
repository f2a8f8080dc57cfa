"""An advantage of our own: the reward minus the best of its group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagrpo.algorithms.advantages import Advantage
from dagrpo.params.plugged import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """The reward minus the best reward of the prompt's group."""


def below_best(rewards: torch.Tensor, group_size: int, config: Config) -> torch.Tensor:
    """r - max_g, never above 0. rewards: [completions]"""
    groups = rewards.view(-1, group_size)  # [prompts, group]
    return (groups - groups.amax(dim=1, keepdim=True)).reshape(-1)


best = Advantage(config=Config, function=below_best)
