"""ReMax: the greedy completion's reward as baseline (Li et al. 2023, arXiv 2310.10505, algorithm 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagrpo.algorithms.advantages import Advantage
from dagrpo.algorithms.reward_batch import RewardBatch
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """The reward minus that of a greedy completion of the same prompt, which is sampled for this alone."""


def remax(batch: RewardBatch, config: Config) -> torch.Tensor:
    """Return A_t = G_t - r_greedy, G_t the sum of the rewards from token t on: r, less the penalties before its end. [tokens]

    Rewards that are equal to each other, but not to the greedy completion's, teach something.
    """
    assert batch.greedy_rewards is not None, "sampled for an estimator that needs them"
    return batch.returns(1.0) - batch.on_tokens(batch.greedy_rewards[batch.group])


ADVANTAGE = Advantage(
    config=Config, function=remax, compares=False, needs_greedy=True, learns_from_equal=lambda config: True
)
