"""Advantage estimators, one small file each: its Config, its formula, and both as ADVANTAGE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagrpo.params.plugged import Choice
from dagrpo.plugins import Plugins

if TYPE_CHECKING:
    import torch

ConfigType = TypeVar("ConfigType", bound=Choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantage(Generic[ConfigType]):
    """How much better each completion is than expected, from rewards alone."""

    config: type[ConfigType]  # its keys in algorithm.advantage
    function: Callable[[torch.Tensor, int, ConfigType], torch.Tensor]  # rewards [completions], group size -> the same


ADVANTAGES: Plugins[Advantage[Any]] = Plugins(
    what="advantage",
    package=__name__,
    attribute="ADVANTAGE",
    group="dagrpo.advantages",
    key="algorithm.advantage.name",
    kind=Advantage,
)


def advantages_of(rewards: torch.Tensor, group_size: int, config: Choice) -> torch.Tensor:
    """One advantage per completion. rewards: [completions] float32, the samples of one prompt next to each other."""
    return ADVANTAGES.get(config.name).function(rewards, group_size, config)


def advantages_of_kept(rewards: torch.Tensor, kept: torch.Tensor, group_size: int, config: Choice) -> torch.Tensor:
    """As `advantages_of`, where only some completions count: the others are no part of their group's baseline.

    kept: [completions] bool. The advantage is 0 where a completion is left out, or is the only one left of its group.
    """
    groups = kept.view(-1, group_size)  # [prompts, group]
    left = groups.sum(dim=1, keepdim=True).expand_as(groups).reshape(-1)  # [completions]: of its group
    advantages = rewards.new_zeros(len(rewards))
    for size in range(2, group_size + 1):
        chosen = kept & (left == size)
        if chosen.any():
            advantages[chosen] = advantages_of(rewards[chosen], size, config)
    return advantages
