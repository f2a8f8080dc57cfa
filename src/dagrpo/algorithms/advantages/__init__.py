"""Advantage estimators: one file each, with Config, formula and ADVANTAGE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagrpo.algorithms.reward_batch import RewardBatch
from dagrpo.params.plugged import Choice
from dagrpo.plugins import Plugins

if TYPE_CHECKING:
    import torch

ConfigType = TypeVar("ConfigType", bound=Choice)
BELOW_0 = -1e-9  # of a reward: nearer to 0 is what is left by rounding of prices that cancel each other


def _never(config: Any) -> bool:
    return False


def _refuses_none(config: Any) -> None:
    """A divergence that is taken from the reward is as good as any other part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantage(Generic[ConfigType]):
    """An estimator of how much better than expected a trajectory, or each of its tokens, is."""

    config: type[ConfigType]  # its keys in algorithm.advantage
    function: Callable[[RewardBatch, ConfigType], torch.Tensor]  # -> [trajectories] or [tokens], float64
    compares: bool = True  # within a group: of one that has a single trajectory left nothing is learned
    needs_policy: bool = False  # reads RewardBatch.policy, which costs a forward pass before the update
    needs_greedy: bool = False  # reads RewardBatch.greedy_rewards, which costs a greedy completion of every prompt
    needs_components: bool = False  # reads RewardBatch.components instead of their sum: with one, it is refused
    never_negative: bool = False  # its rewards are at least 0: any other is refused
    # Whether it can learn from a group of equal rewards: what throws such groups away is then refused.
    learns_from_equal: Callable[[ConfigType], bool] = _never
    # Why a divergence that is taken from the reward is refused, as the rest of a sentence that begins with the name; None: it
    # is not.
    refuses_penalty: Callable[[ConfigType], str | None] = _refuses_none


ADVANTAGES: Plugins[Advantage[Any]] = Plugins(
    what="advantage",
    package=__name__,
    attribute="ADVANTAGE",
    group="dagrpo.advantages",
    key="algorithm.advantage.name",
    kind=Advantage,
)


def advantages_of(batch: RewardBatch, config: Choice) -> torch.Tensor:
    """One advantage per token. [tokens] float64"""
    advantages = ADVANTAGES.get(config.name).function(batch, config)
    if len(advantages) == len(batch.rewards) and len(advantages) != len(batch.trajectory):
        return batch.on_tokens(advantages)
    assert len(advantages) == len(batch.trajectory), "an estimator returns one value per trajectory or per token"
    return advantages
