"""Policy losses, each with its parameters and formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagrpo.algorithms.aggregation import Aggregation
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch, TokenLoss
from dagrpo.core.errors import require_arguments
from dagrpo.core.plugin_sections import Choice
from dagrpo.core.plugins import Plugins

if TYPE_CHECKING:
    import torch


ConfigType = TypeVar("ConfigType", bound=Choice)


def _never(config: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Generic[ConfigType]):
    """A policy loss per token, to be minimised. `algorithm.aggregation` says how tokens are added up."""

    config: type[ConfigType]  # its keys in algorithm.loss
    function: Callable[[TokenBatch, ConfigType], TokenLoss]
    aggregation: Aggregation = "token-mean"  # what it was published with
    # Computes TokenBatch.selected from all tokens of a mini-batch, which costs a forward pass before the update.
    select: Callable[[MiniBatch, ConfigType], torch.Tensor] | None = None
    # Whether its ratio is to the engine's logprobs; a correction between engine and trainer would then count twice.
    anchored_on_rollout: Callable[[ConfigType], bool] = _never
    # Whether it is the policy gradient in a step's first update; training.mini_batches 1 is then refused.
    needs_later_updates: bool = False
    # Aggregations that turn it into another loss, with the name of that loss; they are refused.
    same_with: Mapping[Aggregation, str] = field(default_factory=dict)
    needs_teacher: bool = False  # reads TokenBatch.teacher_logprobs, and no advantages

    def __post_init__(self) -> None:
        """Raise UserError, with its file and line, for a function that takes other arguments."""
        require_arguments("function", self.function, "batch", "config")


LOSSES: Plugins[Loss[Any]] = Plugins(
    what="loss",
    package=__name__,
    attribute="LOSS",
    group="dagrpo.losses",
    key="algorithm.loss.name",
    kind=Loss,
    families={
        "selecting": ("clip_cov", "kl_cov", "top_entropy"),
        "sequence_ratios": ("gmpo", "gspo", "luspo", "vespo"),
        "weighted": ("cispo", "dis", "dppo", "minirl"),
        "without_clip": ("dro", "gpg", "sapo"),
    },
)


def loss_of(batch: TokenBatch, config: Choice) -> TokenLoss:
    """Return the loss that algorithm.loss names, of whole sequences."""
    return LOSSES.get(config.name).function(batch, config)


def aggregation_of(aggregation: str, config: Choice) -> Aggregation:
    """Return the aggregation that algorithm.aggregation names; `default` is the one that the loss was published with."""
    chosen: Any = LOSSES.get(config.name).aggregation if aggregation == "default" else aggregation
    return chosen  # type: ignore[no-any-return]
