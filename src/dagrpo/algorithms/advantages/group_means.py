"""Rewards less a mean of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dagrpo.algorithms.advantages import BELOW_0, Advantage, OverBatch, grpo
from dagrpo.algorithms.reward_batch import STD_EPSILON, RewardBatch, variance, whitened
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


# REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740, section 3.2).
class Rloo(Choice):
    """RLOO: the reward minus the mean of the other rewards of the prompt's group."""


def rloo(batch: RewardBatch, config: Rloo) -> torch.Tensor:
    """Return A_i = r_i - mean of r_j, j != i, over each prompt's group of n: n / (n - 1) times r_i minus the group's mean.

    [trajectories]. 0 in a group of one.
    """
    sizes = batch.group_sizes
    return (batch.rewards - batch.group_mean(batch.rewards)) * sizes / (sizes - 1).clamp(min=1)


RLOO = Advantage(config=Rloo, function=rloo)


# On-policy RL with an optimal baseline (Hao et al. 2025, OPO, arXiv 2505.23585).
class Opo(Choice):
    """The reward minus the mean of its group, weighted by the lengths of the completions."""


def opo(batch: RewardBatch, config: Opo) -> torch.Tensor:
    """Return A_i = r_i - sum_j(l_j r_j) / sum_j(l_j) over the group, l being lengths in tokens. [trajectories]

    The baseline of the least variance if the squared norm of a completion's gradient grows with its length. Advantages
    of a group add up to 0 when they are weighted by length, not otherwise.
    """
    lengths = batch.lengths.double()
    return batch.rewards - batch.group_sum(lengths * batch.rewards) / batch.group_sum(lengths)


OPO = Advantage(config=Opo, function=opo)


# Maximum likelihood RL (Tajwar et al. 2026, MaxRL, arXiv 2602.02710).
class Maxrl(Choice):
    """The reward minus the mean of its group, divided by that mean. For rewards that are never negative, such as 0 and 1."""


def maxrl(batch: RewardBatch, config: Maxrl) -> torch.Tensor:
    """Return A = (r - mean_g) / mean_g, and 0 where the mean is not above 0. [trajectories]

    With rewards of 0 and 1 a prompt weighs 1 / its pass rate, as in the gradient of the logarithm of that rate. Rewards
    of both signs could make a mean near 0, and with it advantages without a bound, and nothing would be learned from
    negative ones: a step with a reward below 0 is refused.
    """
    mean = batch.group_mean(batch.rewards)
    positive = mean > -BELOW_0  # a division by what rounding has left would make it a full-size advantage
    return ((batch.rewards - mean) / mean.masked_fill(~positive, 1.0)).masked_fill(~positive, 0.0)


MAXRL = Advantage(
    config=Maxrl,
    function=maxrl,
    never_negative=True,
    refuses_penalty=lambda config: "divides by the mean of rewards less the divergence, which could be negative",
)


# The advantage of group policy gradient (Chu et al. 2025, GPG, arXiv 2504.02546).
class Gpg(OverBatch):
    """The reward minus the mean of its group, scaled up for the groups without a gradient."""

    max_alpha: Annotated[float, Field(ge=1, le=1000)] = Field(
        2.0,
        description=(
            "Largest factor that compensates for groups of equal rewards. The paper samples more prompts until the factor is at "
            "most this; 1: no compensation."
        ),
    )


def gpg(batch: RewardBatch, config: Gpg) -> torch.Tensor:
    """Return A = alpha * (r - mean_g), alpha = trajectories / trajectories in groups of unequal rewards. [trajectories]

    So the gradient's size does not depend on how many groups have none. alpha is at most max_alpha. The loss that was
    published with it has no ratio (gpg). verl counts the rewards that are not 0 instead, which is another alpha.
    """
    centred = batch.rewards - batch.group_mean(batch.rewards)
    unequal = (batch.group_max(centred.abs()) > 0).double()
    alpha = (len(centred) / unequal.sum().clamp(min=1)).clamp(max=config.max_alpha)
    return alpha * centred


GPG = Advantage(
    config=Gpg,
    function=gpg,
    refuses_penalty=lambda config: (
        "compensates for groups of equal rewards, which it cannot recognise once the divergence makes them differ"
    ),
)


# Group mean and batch standard deviation (Liu et al. 2025, Lite PPO, arXiv 2508.08221).
class BatchStd(OverBatch):
    """The reward minus the mean of its group, divided by one standard deviation for the whole step."""

    std_of: Literal["rewards", "centred"] = Field(
        "rewards",
        description="rewards: the standard deviation of the rewards (Lite PPO); centred: of rewards minus group means (ScaleRL).",
    )


def batch_std(batch: RewardBatch, config: BatchStd) -> torch.Tensor:
    """Return A = (r - mean_g) / (std + 1e-6), the standard deviation that of all trajectories of the step (n - 1). [trajectories]

    std_of: rewards as Lite PPO; centred as ScaleRL (Khatri et al. 2025, arXiv 2510.13786), which divides by that of the
    advantages. Unlike the group's own, it does not blow up a group in which one of many rewards differs.
    """
    centred = batch.rewards - batch.group_mean(batch.rewards)
    spread = variance(batch.rewards if config.std_of == "rewards" else centred).sqrt()
    return centred / (spread + STD_EPSILON)


BATCH_STD = Advantage(config=BatchStd, function=batch_std)


# Each component of the reward normalised by itself (Liu et al. 2026, GDPO, arXiv 2601.05242).
class Gdpo(OverBatch):
    """GRPO on each component of the reward; their sum, each times its weight, is whitened over the step."""


def gdpo(batch: RewardBatch, config: Gdpo) -> torch.Tensor:
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


GDPO = Advantage(
    config=Gdpo,
    function=gdpo,
    needs_components=True,
    learns_from_equal=lambda config: True,  # components may differ although their sum does not
    refuses_penalty=lambda config: "reads the components of the reward, and the divergence is not one of them",
)


# Advantages of pass@k, k being the whole group (Tang et al. 2025, arXiv 2503.19595).
class GrpoPassk(grpo.Config):
    """Only the best completion of a group has an advantage: how far its reward is ahead of the second best."""

    normalize_by_std: bool = Field(True, description="Divide by the group's standard deviation, as GRPO does.")


def grpo_passk(batch: RewardBatch, config: GrpoPassk) -> torch.Tensor:
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


GRPO_PASSK = Advantage(config=GrpoPassk, function=grpo_passk, refuses_penalty=grpo.refuses_penalty)
