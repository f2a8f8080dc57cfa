"""Weights that turn losses per token into the loss of a mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "prompt-mean", "constant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The sequences of a mini-batch, over all ranks. A trajectory is one of them, however many samples it has.

    What all of its micro-batches ask for is computed once.
    """

    tokens: Sequence[int]  # [sequences]: trained tokens of each; 0: it does not count
    prompts: Sequence[int]  # [sequences]: which prompt each answers
    all_tokens: int = field(init=False, compare=False)
    counted: int = field(init=False, compare=False)  # sequences that count
    counted_prompts: int = field(init=False, compare=False)  # prompts with a sequence that counts
    of_prompts: Sequence[int] = field(
        init=False, compare=False
    )  # [sequences]: tokens of all that answer the same prompt

    def __post_init__(self) -> None:
        """Add up the tokens."""
        totals = dict.fromkeys(self.prompts, 0)
        for prompt, tokens in zip(self.prompts, self.tokens, strict=True):
            totals[prompt] += tokens
        object.__setattr__(self, "all_tokens", sum(self.tokens))
        object.__setattr__(self, "counted", sum(tokens > 0 for tokens in self.tokens))
        object.__setattr__(self, "counted_prompts", sum(tokens > 0 for tokens in totals.values()))
        object.__setattr__(self, "of_prompts", [totals[prompt] for prompt in self.prompts])


def weights(
    aggregation: Aggregation,
    sequence: torch.Tensor,
    first: int,
    lengths: Lengths,
    *,
    max_new_tokens: int,
    sequences: int | None = None,
) -> tuple[torch.Tensor, float]:
    """Return the weight of each token of a micro-batch, and the denominator of the mini-batch's weighted sum.

    sequence: [tokens], the index of a token's sequence within the micro-batch, of `sequences` (None: all that follow); they are
    whole, and the first has the index `first` in the mini-batch. The loss of a mini-batch is the sum over its micro-batches of
    `(per_token * weights).sum() / denominator`. Tokens of sequences that do not count weigh 0.

    token-mean: every token weighs the same (DAPO, arXiv 2503.14476, section 3.3). seq-mean-token-mean: every sequence
    does (GRPO, arXiv 2402.03300, equation 3). seq-mean-token-sum: tokens are summed within a sequence. constant: as
    seq-mean-token-sum, divided by max_new_tokens (Dr. GRPO, arXiv 2503.20783, section 3.2), so that no length changes a token's weight.
    prompt-mean: every prompt weighs the same, and so does every token among those that answer it (ScaleRL, arXiv
    2510.13786, section 2).
    """
    span = slice(first, None if sequences is None else first + sequences)
    counted = sequence.new_tensor([tokens > 0 for tokens in lengths.tokens[span]])
    ones = counted[sequence].float()
    all_sequences = float(max(lengths.counted, 1))
    match aggregation:
        case "token-mean":
            return ones, float(max(lengths.all_tokens, 1))
        case "seq-mean-token-mean":
            return ones / sequence.bincount()[sequence], all_sequences
        case "seq-mean-token-sum":
            return ones, all_sequences
        case "prompt-mean":
            of_prompts = sequence.new_tensor(lengths.of_prompts[span])
            return ones / of_prompts.clamp(min=1)[sequence], float(max(lengths.counted_prompts, 1))
    return ones, all_sequences * max_new_tokens
