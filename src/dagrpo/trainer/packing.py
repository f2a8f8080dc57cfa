"""Prompts and completions as tokens and as padded tensors, and which prompts a step trains on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Prompts and completions side by side, padded on the right.

    Example: prompts ((5, 6),) and completions ((7,),) give input_ids [[5, 6, 7]], completion_mask [[F, F, T]].
    """

    input_ids: torch.Tensor  # [sequences, length] int64
    attention_mask: torch.Tensor  # [sequences, length] int64, 0 on padding
    completion_mask: torch.Tensor  # [sequences, length] bool, True on the tokens the policy wrote

    @property
    def rows(self) -> torch.Tensor:
        """The sequence each completion token belongs to, in the order of flattened tokens. [tokens]"""
        return self.completion_mask.nonzero()[:, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequences:
    """What an update reads of a step's rollouts."""

    prompts: Sequence[Sequence[int]]  # [completions][prompt], each prompt repeated for its samples
    completions: Sequence[Sequence[int]]  # [completions][completion]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each completion. [completions]"""
        return [len(completion) for completion in self.completions]

    def batch(self, rows: slice, pad_token_id: int, device: torch.device) -> Batch:
        """Some of the sequences, padded."""
        return pad(self.prompts[rows], self.completions[rows], pad_token_id, device)


def pad(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    pad_token_id: int,
    device: torch.device | str = "cpu",
) -> Batch:
    """Stack prompt + completion pairs. Every completion must have at least one token."""
    assert len(prompts) == len(completions)
    lengths = [(len(p), len(c)) for p, c in zip(prompts, completions, strict=True)]
    assert all(p > 0 and c > 0 for p, c in lengths), "an empty prompt or completion has nothing to predict"
    shape = (len(lengths), max(p + c for p, c in lengths))
    input_ids = torch.full(shape, pad_token_id, dtype=torch.int64)
    attention_mask = torch.zeros(shape, dtype=torch.int64)
    completion_mask = torch.zeros(shape, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        end = len(prompt) + len(completion)
        input_ids[row, :end] = torch.tensor([*prompt, *completion])
        attention_mask[row, :end] = 1
        completion_mask[row, len(prompt) : end] = True
    return Batch(
        input_ids=input_ids.to(device),
        attention_mask=attention_mask.to(device),
        completion_mask=completion_mask.to(device),
    )


def prompt_indices(
    seed: int, step: int, count: int, total: int, pass_rates: Sequence[float] | None = None
) -> list[int]:
    """The prompts of a step: the next `count` of an endless row of shuffled epochs.

    A function of its arguments alone, so a resumed run needs no saved position. An epoch's order depends on
    (seed, epoch); a step may span two epochs. Each prompt appears once per epoch. With pass rates, [total], an epoch goes
    from the highest to the lowest, and only prompts of equal pass rate are shuffled among each other.
    """
    first = step * count
    indices: list[int] = []
    for epoch in range(first // total, (first + count - 1) // total + 1):
        order = np.random.default_rng([seed, epoch]).permutation(total)
        if pass_rates is not None:
            order = order[np.argsort(-np.asarray(pass_rates)[order], kind="stable")]
        start = max(first - epoch * total, 0)
        stop = min(first + count - epoch * total, total)
        indices += [int(index) for index in order[start:stop]]
    return indices


def slices(total: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most `size` items."""
    return (slice(start, min(start + size, total)) for start in range(0, total, size))
