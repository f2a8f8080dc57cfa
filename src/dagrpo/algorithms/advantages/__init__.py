"""Advantage estimators: one file each, with Config, formula and ADVANTAGE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagrpo.algorithms.losses import LOSSES
from dagrpo.algorithms.reward_batch import RewardBatch
from dagrpo.core.errors import UserError, require_arguments
from dagrpo.core.plugin_sections import Choice
from dagrpo.core.plugins import Plugins
from dagrpo.rewards.components import lowest_reward

if TYPE_CHECKING:
    import torch

    from dagrpo.config.schema import Params

ConfigType = TypeVar("ConfigType", bound=Choice)
BELOW_0 = -1e-9  # nearer to 0, a reward is the rounding error of prices that cancel


def _never(config: Any) -> bool:
    return False


def _refuses_none(config: Any) -> None:
    """Accept a divergence in the reward."""


def _takes_any(config: Any, params: Params) -> None:
    """Accept all parameters."""


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
    # Raises UserError if the other parameters do not fit. Called when params.yaml has been parsed.
    check: Callable[[ConfigType, Params], None] = _takes_any

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
)


def advantages_of(batch: RewardBatch, config: Choice) -> torch.Tensor:
    """Return one advantage per token. [tokens] float64"""
    advantages = ADVANTAGES.get(config.name).function(batch, config)
    if len(advantages) == len(batch.rewards) and len(advantages) != len(batch.trajectory):
        return batch.on_tokens(advantages)
    assert len(advantages) == len(batch.trajectory), "an estimator returns one value per trajectory or per token"
    return advantages


def check_advantage(params: Params) -> None:
    """Raise UserError if algorithm.advantage does not fit the other parameters."""
    config = params.algorithm.advantage
    _require_components(params)
    _require_equal_groups(params)
    _require_samples(params)
    ADVANTAGES.get(config.name).check(config, params)


def _require_components(params: Params) -> None:
    name, components = params.algorithm.advantage.name, params.reward.components
    advantage = ADVANTAGES.get(name)
    weighted = [component for component, config in components.items() if config.counts]
    if advantage.needs_components and len(weighted) < 2:
        raise UserError(
            f"algorithm.advantage {name} normalises each component of the reward by itself, but {weighted[0]} is the only one "
            "with a weight: give reward.components another one, or take algorithm.advantage: {name: grpo}"
        )
    lowest = lowest_reward(components)
    if advantage.never_negative and lowest is not None and lowest < BELOW_0:
        raise UserError(
            f"algorithm.advantage {name} requires non-negative rewards, but reward.components can give one as low as {lowest:g}: raise "
            "the lowest prices, leave out penalties, or take algorithm.advantage: {name: grpo}"
        )


def _require_equal_groups(params: Params) -> None:
    """Raise UserError for a filter that drops groups from which the advantage learns."""
    config, training = params.algorithm.advantage, params.training
    if not ADVANTAGES.get(config.name).learns_from_equal(config):
        return
    start = f"algorithm.advantage {config.name} can learn from groups of equal rewards, which training."
    if training.zero_variance_filter:
        raise UserError(
            f"{start}zero_variance_filter leaves out: set that to false, or take algorithm.advantage: {{name: grpo}}"
        )
    if training.dynamic_sampling.wants_spread:
        raise UserError(
            f"{start}dynamic_sampling throws away: set its max_rounds and oversampling to 1, its spread_of to null where "
            "max_aborts is above 0, or take algorithm.advantage: {name: grpo}"
        )


def _require_samples(params: Params) -> None:
    name, loss = params.algorithm.advantage.name, params.algorithm.loss.name
    is_alone = params.training.samples_per_prompt == 1
    if is_alone and ADVANTAGES.get(name).compares and not LOSSES.get(loss).needs_teacher:
        raise UserError(
            f"training.samples_per_prompt is 1, but algorithm.advantage {name} compares the samples of a prompt: set "
            "training.samples_per_prompt to 2 or more, or take algorithm.advantage: {name: reinforce_plus_plus} or {name: remax}"
        )
