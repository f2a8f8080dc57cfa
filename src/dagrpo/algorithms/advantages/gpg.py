"""The advantage of group policy gradient (Chu et al. 2025, GPG, arXiv 2504.02546)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dagrpo.algorithms.advantages import Advantage
from dagrpo.algorithms.reward_batch import RewardBatch
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """The reward minus the mean of its group, scaled up for the groups without a gradient."""

    max_alpha: Annotated[float, Field(ge=1, le=1000)] = Field(
        2.0,
        description=(
            "Largest factor that compensates for groups of equal rewards. The paper samples more prompts until the factor is at "
            "most this; 1: no compensation."
        ),
    )


def gpg(batch: RewardBatch, config: Config) -> torch.Tensor:
    """Return A = alpha * (r - mean_g), alpha = trajectories / trajectories in groups of unequal rewards. [trajectories]

    So the gradient's size does not depend on how many groups have none. alpha is at most max_alpha. The loss that was
    published with it has no ratio (gpg). verl counts the rewards that are not 0 instead, which is another alpha.
    """
    centred = batch.rewards - batch.group_mean(batch.rewards)
    unequal = (batch.group_max(centred.abs()) > 0).double()
    alpha = (len(centred) / unequal.sum().clamp(min=1)).clamp(max=config.max_alpha)
    return alpha * centred


def refuses_penalty(config: Config) -> str:
    """Return the reason: with a divergence, hardly any two rewards of a group are equal."""
    return "compensates for groups of equal rewards, which it cannot recognise once the divergence makes them differ"


ADVANTAGE = Advantage(config=Config, function=gpg, refuses_penalty=refuses_penalty)
