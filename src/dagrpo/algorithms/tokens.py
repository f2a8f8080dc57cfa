"""What every loss sees, and what it returns: flat tokens, whatever sequences, ranks or micro-batches they come from.

Nothing here or in a loss imports torch when it is imported: params.yaml is checked on every `snakemake -n`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The trained tokens of whole sequences, one sequence after the other. All tensors are on one device.

    A sequence is all that the policy wrote in one trajectory, over all of its turns and samples.
    """

    logprobs: torch.Tensor  # [tokens], of the policy that is trained; the only one with a gradient
    old_logprobs: torch.Tensor  # [tokens], of the policy that sampled, as the trainer computes them
    rollout_logprobs: torch.Tensor  # [tokens], of the policy that sampled, as the engine computed them
    reference_logprobs: torch.Tensor | None  # [tokens], of the initial policy; None where no divergence is asked for
    entropy: torch.Tensor  # [tokens], in nats, of the policy that is trained; no gradient
    advantages: torch.Tensor  # [tokens], each sequence's advantage on all of its tokens
    sequence: torch.Tensor  # [tokens] int64, from 0, rising: which sequence of the batch a token belongs to
    sequences: int  # how many there are

    def mean_of_sequence(self, values: torch.Tensor) -> torch.Tensor:
        """On each token the mean of the values of its sequence. [tokens] -> [tokens]"""
        sums = values.new_zeros(self.sequences).index_add(0, self.sequence, values)
        return (sums / self.sequence.bincount(minlength=self.sequences).clamp(min=1))[self.sequence]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """A loss per token, to be minimised, and sums over tokens of whatever the loss measured.

    `metrics` are summed over micro-batches and ranks and divided by the number of tokens of the step: a clip fraction is
    the sum of 0 and 1.
    """

    per_token: torch.Tensor  # [tokens]
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)  # name -> scalar sum over the tokens, detached
