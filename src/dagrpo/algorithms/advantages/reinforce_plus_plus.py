"""REINFORCE++: returns of tokens, normalised over the batch (Hu et al. 2025, arXiv 2501.03262)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dagrpo.algorithms.advantages import Advantage
from dagrpo.algorithms.reward_batch import RewardBatch, whitened
from dagrpo.core.plugin_sections import Choice

if TYPE_CHECKING:
    import torch


class Config(Choice):
    """REINFORCE++: the discounted return of each token, whitened over all tokens of the step."""

    gamma: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="Discount per token.")


def reinforce_plus_plus(batch: RewardBatch, config: Config) -> torch.Tensor:
    """Return A_t = (G_t - mean) / sqrt(variance + 1e-8) over all tokens of the step, G_t = r_t + gamma * G_(t + 1). [tokens]

    Published with a k1 divergence in the reward (algorithm.kl). It compares across prompts, not within a group: equal
    rewards of one group teach something where other groups have others. With gamma below 1, equal rewards teach length.
    The next token is the policy's own next one, whatever a tool said in between.
    """
    return whitened(batch.returns(config.gamma))


ADVANTAGE = Advantage(
    config=Config, function=reinforce_plus_plus, compares=False, learns_from_equal=lambda config: True
)
