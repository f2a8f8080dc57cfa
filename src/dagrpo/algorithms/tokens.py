"""Flat trained tokens, the input of every loss, and its output.

Nothing here or in a loss imports torch when it is imported: params.yaml is checked on every `snakemake -n`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LOG_RATIO_LIMIT = 20.0  # exp() of more carries no information, and overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The trained tokens of whole sequences, one sequence after the other. All tensors are on one device.

    A sequence is all that the policy wrote in one trajectory, over all of its turns and samples.
    """

    logprobs: torch.Tensor  # [tokens], of the policy that is trained; the only one with a gradient
    old_logprobs: torch.Tensor  # [tokens], of the policy before the step, as the trainer computes them
    rollout_logprobs: torch.Tensor  # [tokens], of the weights that sampled, as the engine computed them
    reference_logprobs: torch.Tensor | None  # [tokens], of the initial policy; None where no divergence is asked for
    entropy: torch.Tensor  # [tokens], in nats, of the policy that is trained; with a gradient where a term asks for it
    advantages: torch.Tensor  # [tokens]; most estimators have one for all tokens of a sequence
    positive: torch.Tensor  # [tokens] bool, whether the answer of its sequence is right
    sequence: torch.Tensor  # [tokens] int64, from 0, rising: which sequence of the batch a token belongs to
    sequences: int  # how many there are
    selected: torch.Tensor | None = None  # [tokens], what the loss's `select` gave them; None without one
    teacher_logprobs: torch.Tensor | None = None  # [tokens], of the teacher; None without one

    def ratio_to(self, anchor: torch.Tensor) -> torch.Tensor:
        """Return exp(logprob - anchor), the exponent clamped to LOG_RATIO_LIMIT. [tokens] -> [tokens]"""
        return (self.logprobs - anchor).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()

    def only(self, mask: torch.Tensor) -> TokenBatch:
        """Return the tokens that a mask selects; sequences keep their numbers, also those without a token left."""
        values = ((name, getattr(self, name)) for name in _PER_TOKEN)
        tensors: dict[str, Any] = {name: None if value is None else value[mask] for name, value in values}
        return replace(self, **tensors)

    @property
    def lengths(self) -> torch.Tensor:
        """Return the length of its sequence for each token. [tokens] int64"""
        return self.sequence.bincount(minlength=self.sequences)[self.sequence]

    def sum_of_sequence(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over its sequence for each token. [tokens] -> [tokens]"""
        return values.new_zeros(self.sequences).index_add(0, self.sequence, values)[self.sequence]

    def mean_of_sequence(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean over its sequence for each token. [tokens] -> [tokens]"""
        return self.sum_of_sequence(values) / self.lengths


_PER_TOKEN = [each.name for each in fields(TokenBatch) if each.name != "sequences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """All trained tokens of one mini-batch, over all ranks and micro-batches, before the step's first update.

    On the CPU, without gradients. For functions of all tokens: a quantile, a covariance, a random choice.
    """

    logprobs: torch.Tensor  # [tokens], of the policy before the step, as the trainer computes them
    entropy: torch.Tensor  # [tokens], in nats, of that policy
    advantages: torch.Tensor  # [tokens]
    seed: int  # of this mini-batch and no other, for draws

    @property
    def covariances(self) -> torch.Tensor:
        """Return each token's centred product of logprob and advantage, its part of their covariance. [tokens] float64

        Where it is large, an update makes the policy much surer of itself (arXiv 2505.22617, section 4).
        """
        logprobs, advantages = self.logprobs.double(), self.advantages.double()
        return (logprobs - logprobs.mean()) * (advantages - advantages.mean())

    def count_of(self, share: float) -> int:
        """Return the number of tokens in a share of the mini-batch, rounded down, at least 1."""
        return max(int(round(share * len(self.logprobs), 6)), 1)  # 0.29 * 100 is 28.999999999999996


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """A loss per token, to be minimised, and sums over tokens for the metrics.

    `metrics` are summed over micro-batches and ranks and divided by the number of tokens of the step: a clip fraction is
    the sum of 0 and 1.
    """

    per_token: torch.Tensor  # [tokens]
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)  # name -> scalar sum over the tokens, detached


def teacher_advantages(batch: TokenBatch, largest: float | None) -> torch.Tensor:
    """Return teacher logprob - old logprob, clamped to [-largest, largest] unless that is None; no gradient. [tokens]

    The mean over tokens that the policy sampled estimates -KL(policy || teacher), the reverse divergence.
    """
    assert batch.teacher_logprobs is not None, "a loss or term that reads a teacher requires algorithm.teacher"
    advantages = (batch.teacher_logprobs - batch.old_logprobs).detach()
    return advantages if largest is None else advantages.clamp(-largest, largest)
