"""On-policy RL with an optimal baseline (Hao et al. 2025, OPO, arXiv 2505.23585)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagrpo.algorithms.advantages import Advantage
from dagrpo.algorithms.reward_batch import RewardBatch
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """The reward minus the mean of its group, weighted by the lengths of the completions."""


def opo(batch: RewardBatch, config: Config) -> torch.Tensor:
    """Return A_i = r_i - sum_j(l_j r_j) / sum_j(l_j) over the group, l being lengths in tokens. [trajectories]

    The baseline of the least variance if the squared norm of a completion's gradient grows with its length. Advantages
    of a group add up to 0 when they are weighted by length, not otherwise.
    """
    lengths = batch.lengths.double()
    return batch.rewards - batch.group_sum(lengths * batch.rewards) / batch.group_sum(lengths)


ADVANTAGE = Advantage(config=Config, function=opo)
