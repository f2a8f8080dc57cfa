"""From a loss per token to the loss of a mini-batch: what each token weighs, by algorithm.aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant"]


def weights(
    aggregation: Aggregation, sequence: torch.Tensor, lengths: Sequence[int], *, max_new_tokens: int
) -> tuple[torch.Tensor, float]:
    """The weight of each token of a micro-batch, and what the weighted sum of the whole mini-batch is divided by.

    sequence: [tokens], which sequence of the micro-batch a token belongs to; sequences are whole, and a trajectory is one
    of them, so that a second sample does not double what it weighs. lengths: trained tokens of every sequence of the
    mini-batch, over all ranks. The loss of a mini-batch is the sum over its micro-batches
    of `(per_token * weights).sum() / denominator`.

    token-mean: every token weighs the same (DAPO, arXiv 2503.14476, section 3.3). seq-mean-token-mean: every sequence
    does (GRPO, arXiv 2402.03300, equation 3). seq-mean-token-sum: tokens are summed in a sequence. constant: as that, and
    divided by max_new_tokens (Dr. GRPO, arXiv 2503.20783, section 3.2), so that no length changes a token's weight.
    """
    ones = sequence.new_ones(len(sequence)).float()
    if aggregation == "token-mean":
        return ones, float(sum(lengths))
    if aggregation == "seq-mean-token-mean":
        return ones / sequence.bincount()[sequence], float(len(lengths))
    if aggregation == "seq-mean-token-sum":
        return ones, float(len(lengths))
    return ones, float(len(lengths) * max_new_tokens)
