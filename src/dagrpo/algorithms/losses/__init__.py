"""Policy losses: one file each, with Config, formula and LOSS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagrpo.algorithms.aggregation import Aggregation
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch, TokenLoss
from dagrpo.core.errors import UserError
from dagrpo.core.plugged import Choice
from dagrpo.core.plugins import Plugins

if TYPE_CHECKING:
    import torch

    from dagrpo.config.schema import Params

ConfigType = TypeVar("ConfigType", bound=Choice)


def _never(config: Any) -> bool:
    return False


def _takes_any(config: Any, params: Params) -> None:
    """Accept all parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Generic[ConfigType]):
    """A policy loss per token, to be minimised. How tokens are added up is algorithm.aggregation's, not the loss's."""

    config: type[ConfigType]  # its keys in algorithm.loss
    function: Callable[[TokenBatch, ConfigType], TokenLoss]
    aggregation: Aggregation = "token-mean"  # what it was published with
    # What TokenBatch.selected is to be, from all tokens of a mini-batch: costs a forward pass before the update.
    select: Callable[[MiniBatch, ConfigType], torch.Tensor] | None = None
    # Whether its ratio is to the engine's logprobs: a correction between engine and trainer would then count twice.
    anchored_on_rollout: Callable[[ConfigType], bool] = _never
    # Whether only what follows a step's first update differs from the policy gradient: training.mini_batches 1 is refused.
    needs_later_updates: bool = False
    # Aggregations with which it is another loss, by that one's name: they are refused.
    same_with: Mapping[Aggregation, str] = field(default_factory=dict)
    needs_teacher: bool = False  # reads TokenBatch.teacher_logprobs, and no advantages
    # Raises UserError where the other parameters are not ones that it can work with. Called when params.yaml is read.
    check: Callable[[ConfigType, Params], None] = _takes_any


LOSSES: Plugins[Loss[Any]] = Plugins(
    what="loss", package=__name__, attribute="LOSS", group="dagrpo.losses", key="algorithm.loss.name", kind=Loss
)


def loss_of(batch: TokenBatch, config: Choice) -> TokenLoss:
    """Return the loss that algorithm.loss names, of whole sequences."""
    return LOSSES.get(config.name).function(batch, config)


def aggregation_of(aggregation: str, config: Choice) -> Aggregation:
    """algorithm.aggregation by its own name: `default` is what the loss was published with."""
    named: Any = LOSSES.get(config.name).aggregation if aggregation == "default" else aggregation
    return named  # type: ignore[no-any-return]


def check_loss(params: Params) -> None:
    """Raise UserError where algorithm.loss cannot work with the other parameters."""
    config = params.algorithm.loss
    loss = LOSSES.get(config.name)
    if loss.needs_later_updates and params.training.mini_batches == 1:
        raise UserError(
            f"algorithm.loss {config.name} differs from the policy gradient only after a step's first update, and "
            "training.mini_batches 1 makes one update: set training.mini_batches to 2 or more, or take algorithm.loss: {name: gpg}"
        )
    loss.check(config, params)
