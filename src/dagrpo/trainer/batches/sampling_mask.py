"""Sampling mask per trained token, for top_p and top_k.

It is recorded, never computed again: a token that is just within top_p to the engine may be just outside to the trainer, whose
last bits differ.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

_LENGTHS, _TOKEN_IDS = "support_lengths", "support_token_ids"  # among the tensors of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedSupport:
    """Sampling mask of a batch's trained tokens.

    Example: the first was sampled from 3 and 7, the second from 7 alone: rows [0, 0, 1], token_ids [3, 7, 7].
    """

    rows: Tensor  # [pairs] int64: the index of a trained token in the batch, ascending
    token_ids: Tensor  # [pairs] int64: a token of its sampling mask, which includes itself

    def part(self, start: int, stop: int) -> "PaddedSupport":
        """Return the mask of the trained tokens from `start` on, and before `stop`."""
        first, last = torch.searchsorted(self.rows, self.rows.new_tensor([start, stop])).tolist()
        return PaddedSupport(rows=self.rows[first:last] - start, token_ids=self.token_ids[first:last])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSupport:
    """Sampling mask of each trained token of a step, if top_p or top_k left out some tokens. On the CPU."""

    lengths: Tensor  # [trained tokens] int64: size of each sampling mask
    token_ids: Tensor  # [sum of lengths] int32
    _ends: Tensor = field(init=False)  # [trained tokens + 1], into token_ids

    def __post_init__(self) -> None:
        """Assert that the lengths add up: others are a bug of the caller."""
        ends = torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0))
        assert int(ends[-1]) == len(self.token_ids)
        object.__setattr__(self, "_ends", ends)

    @classmethod
    def of(cls, support: Sequence["array[int]"]) -> "TokenSupport | None":
        """Build from lists, [trained tokens][tokens]; None without any."""
        if not support:
            return None
        return cls(
            lengths=torch.tensor([len(ids) for ids in support]),
            token_ids=torch.from_numpy(np.concatenate([np.frombuffer(ids, dtype=np.int32) for ids in support])),
        )

    def padded(self, places: Tensor, device: torch.device) -> PaddedSupport:
        """Return the mask of some trained tokens. places: [tokens] int64"""
        lengths = self.lengths[places]
        rows = torch.arange(len(places)).repeat_interleave(lengths)
        within = torch.arange(len(rows)) - (lengths.cumsum(0) - lengths)[rows]  # each pair's index in its token's mask
        return PaddedSupport(
            rows=rows.to(device, non_blocking=True),
            token_ids=self.token_ids[self._ends[places][rows] + within].long().to(device, non_blocking=True),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to send to other ranks."""
        return {_LENGTHS: self.lengths, _TOKEN_IDS: self.token_ids}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "TokenSupport | None":
        """Rebuild the mask from the tensors of `tensors`; None if they are not among these."""
        return cls(lengths=tensors[_LENGTHS], token_ids=tensors[_TOKEN_IDS]) if _LENGTHS in tensors else None
