"""Advantage estimators, one small file each, by the name that algorithm.advantage gives them."""

import torch

from dagrpo.algorithms.advantages.grpo import grpo_advantages
from dagrpo.params.algorithm import Algorithm

_ESTIMATORS = {"grpo": grpo_advantages}


def advantages_of(rewards: torch.Tensor, group_size: int, algorithm: Algorithm) -> torch.Tensor:
    """One advantage per completion. rewards: [completions], the samples of one prompt next to each other."""
    return _ESTIMATORS[algorithm.advantage](rewards, group_size, algorithm.normalize_by_std)
