"""Advantage estimators, each with its parameters and formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import Field

from dagrpo.algorithms.reward_batch import RewardBatch
from dagrpo.core.errors import require_arguments
from dagrpo.core.plugin_sections import Choice
from dagrpo.core.plugins import Plugins

if TYPE_CHECKING:
    import torch


ConfigType = TypeVar("ConfigType", bound=Choice)
BELOW_0 = -1e-9  # nearer to 0, a reward is the rounding error of prices that cancel


class OverBatch(Choice):
    """Parameters of an estimator that normalises over the trajectories of a step."""

    per_task: bool = Field(
        False,
        description="In a mixture of tasks, normalise over the trajectories of each task instead of all of the step.",
    )


def _never(config: Any) -> bool:
    return False


def _refuses_none(config: Any) -> None:
    """Accept a divergence in the reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantage(Generic[ConfigType]):
    """An estimator of how much better than expected a trajectory, or each of its tokens, is."""

    config: type[ConfigType]  # its keys in algorithm.advantage
    function: Callable[[RewardBatch, ConfigType], torch.Tensor]  # -> [trajectories] or [tokens], float64
    compares: bool = True  # within a group: a group with a single trajectory teaches nothing
    needs_policy: bool = False  # reads RewardBatch.policy, which costs a forward pass before the update
    needs_greedy: bool = False  # reads RewardBatch.greedy_rewards, which costs a greedy completion of every prompt
    needs_components: bool = False  # reads RewardBatch.components instead of their sum; refused with a single component
    never_negative: bool = False  # requires rewards of at least 0
    # Whether it learns from a group of equal rewards; filters that drop such groups are then refused.
    learns_from_equal: Callable[[ConfigType], bool] = _never
    # Why a divergence in the reward is refused, the end of a sentence that begins with the name; None: it is accepted.
    refuses_penalty: Callable[[ConfigType], str | None] = _refuses_none

    def __post_init__(self) -> None:
        """Raise UserError, with its file and line, for a function that takes other arguments."""
        require_arguments("function", self.function, "batch", "config")


ADVANTAGES: Plugins[Advantage[Any]] = Plugins(
    what="advantage",
    package=__name__,
    attribute="ADVANTAGE",
    group="dagrpo.advantages",
    key="algorithm.advantage.name",
    kind=Advantage,
    families={
        "group_means": ("batch_std", "gdpo", "gpg", "grpo_passk", "maxrl", "opo", "rloo"),
        "token_returns": ("optimal_token_baseline", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax"),
    },
)


def advantages_of(batch: RewardBatch, config: Choice) -> torch.Tensor:
    """Return one advantage per token. [tokens] float64"""
    advantages = ADVANTAGES.get(config.name).function(batch, config)
    if len(advantages) == len(batch.rewards) and len(advantages) != len(batch.trajectory):
        return batch.on_tokens(advantages)
    assert len(advantages) == len(batch.trajectory), "an estimator returns one value per trajectory or per token"
    return advantages
