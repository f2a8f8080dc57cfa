"""Each component of the reward normalised by itself (Liu et al. 2026, GDPO, arXiv 2601.05242)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagrpo.algorithms.advantages import Advantage
from dagrpo.algorithms.reward_batch import STD_EPSILON, RewardBatch, whitened
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """GRPO on each component of the reward; their sum, each times its weight, is whitened over the step."""


def gdpo(batch: RewardBatch, config: Config) -> torch.Tensor:
    """Return A = (a - mean) / sqrt(variance + 1e-8), a = sum_k w_k (c_k - mean_g(c_k)) / (std_g(c_k) + 1e-6). [trajectories]

    c_k are the components before their weights w_k (reward.components), so that none drowns another by its scale. Mean
    and variance are over the trajectories of the step, as in the paper; verl takes them over its tokens.
    """
    total = batch.rewards.new_zeros(len(batch.rewards))
    for name, weighted in batch.components.items():
        scale = abs(batch.weights[name])
        if scale == 0:  # at this step (final_weight)
            continue
        centred = weighted - batch.group_mean(weighted)
        total = total + scale * centred / (batch.group_std(weighted) + scale * STD_EPSILON)
    return whitened(total)


def refuses_penalty(config: Config) -> str:
    """Return the reason: the estimator does not read the sum that the divergence is subtracted from."""
    return "reads the components of the reward, and the divergence is not one of them"


ADVANTAGE = Advantage(
    config=Config,
    function=gdpo,
    needs_components=True,
    learns_from_equal=lambda config: True,  # components may differ although their sum does not
    refuses_penalty=refuses_penalty,
)
