"""Corrections between engine and trainer.

The engine and the trainer compute the same policy with different rounding, so samples are off-policy, usually slightly. A
correction weighs each token's loss by the difference. The policy's own updates since sampling are covered by the loss's
ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagrpo.algorithms.tokens import LOG_RATIO_LIMIT, TokenBatch
from dagrpo.core.errors import require_arguments
from dagrpo.core.plugin_sections import Choice
from dagrpo.core.plugins import Plugins

if TYPE_CHECKING:
    import torch


ConfigType = TypeVar("ConfigType", bound=Choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWeights:
    """The factor of each token's loss, and measured sums over tokens as in a TokenLoss."""

    per_token: torch.Tensor  # [tokens], detached
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction(Generic[ConfigType]):
    """Weights of tokens, of whole sequences, from `old_logprobs` and `rollout_logprobs`."""

    config: type[ConfigType]  # its keys in algorithm.correction
    function: Callable[[TokenBatch, ConfigType], TokenWeights]
    weighs: bool = True  # False for `none`; a loss that is anchored on the rollout refuses any other

    def __post_init__(self) -> None:
        """Raise UserError, with its file and line, for a function that takes other arguments."""
        require_arguments("function", self.function, "batch", "config")


CORRECTIONS: Plugins[Correction[Any]] = Plugins(
    what="correction",
    package=__name__,
    attribute="CORRECTION",
    group="dagrpo.corrections",
    key="algorithm.correction.name",
    kind=Correction,
    families={
        "importance_weights": (
            "geometric_masked",
            "none",
            "sequence_masked",
            "sequence_truncated",
            "token_masked",
            "token_truncated",
        )
    },
)


def weights_of(batch: TokenBatch, config: Choice) -> TokenWeights:
    """Return the weights that algorithm.correction names."""
    return CORRECTIONS.get(config.name).function(batch, config)


def log_ratios(batch: TokenBatch) -> torch.Tensor:
    """Return the trainer's logprob of each token before the step, less the engine's when it sampled. [tokens], detached"""
    return (batch.old_logprobs - batch.rollout_logprobs).detach()


def ratios(log_ratios: torch.Tensor) -> torch.Tensor:
    """Return exp of log-ratios or of their sums over sequences, clamped so that it is finite. Same shape."""
    return log_ratios.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def truncated(weights: torch.Tensor, maximum: float) -> TokenWeights:
    """Return weights cut at a maximum. [tokens]"""
    cut = weights.clamp(max=maximum)
    return TokenWeights(per_token=cut, metrics={"correction_truncated_fraction": (cut < weights).sum()})


def masked(weights: torch.Tensor, judged: torch.Tensor, minimum: float, maximum: float) -> TokenWeights:
    """Return the weights, with 0 where `judged` lies outside of [minimum, maximum]. All [tokens].

    A masked token still counts in the mean that its loss is part of.
    """
    below, above = judged < minimum, judged > maximum
    return TokenWeights(
        per_token=weights * ~(below | above),
        metrics={
            "correction_masked_fraction": (below | above).sum(),
            "correction_below_fraction": below.sum(),
            "correction_above_fraction": above.sum(),
        },
    )


def off_policy_mask(batch: TokenBatch, threshold: float) -> torch.Tensor:
    """Return False for tokens with a negative advantage in sequences that the policy has moved away from. [tokens] bool

    DeepSeek-V3.2 (arXiv 2512.02556, equation 9). A sequence counts as such if the mean of the engine's logprob minus the
    policy's exceeds the threshold, in nats. That includes the difference between engine and trainer, and the changes by
    the step's earlier mini-batches. So a mistake that the policy would hardly make any more is not learned from, while
    right answers always are.
    """
    distance = batch.mean_of_sequence((batch.rollout_logprobs - batch.logprobs).detach())
    return ~((batch.advantages < 0) & (distance > threshold))
