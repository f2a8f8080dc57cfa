"""Packed rows: sequences of a micro-batch end to end, without padding.

trainer/model/attention.py attends to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from operator import add

import torch
from torch import Tensor

from dagrpo.trainer.batches.sampling_mask import PaddedSupport


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring segments of one shape."""

    length: int  # tokens of each
    context: int  # tokens of the shared prompt that each follows; 0: of none
    number: int  # of segments

    @property
    def seen(self) -> int:
        """Return the number of tokens that a segment's last one attends to."""
        return self.context + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Segments of a packed row: a token attends to earlier ones in its own segment.

    A prompt that several sequences share is a segment by itself. So is its continuation in each of them; their tokens also attend to
    the whole prompt. Example: a prompt of 2 tokens, followed by 1 token and by 3: lengths (2, 1, 3), contexts (0, 2, 2), seen
    [0, 1, 0, 1, 2, 0, 1, 3, 4, 5].
    """

    lengths: tuple[int, ...]  # tokens of each, as they stand in the row
    contexts: tuple[int, ...]  # tokens of the shared prompt that each follows; 0: no prompt
    ends: Tensor  # [segments + 1] int32, on the device: begin of the first, and end of each
    # [tokens] int64, on the device: the indices that each segment attends to, one segment after the other; None: each to itself
    seen: Tensor | None
    seen_ends: Tensor  # [segments + 1] int32: as `ends`, into `seen`
    longest: int  # most tokens of a segment
    longest_seen: int  # most tokens that a segment attends to, those of its prompt included
    _masks: dict[tuple[int, int, int | None], Tensor] = field(default_factory=dict)  # computed once for all layers

    @classmethod
    def of(cls, lengths: Sequence[int], prompts: Sequence[int | None], device: torch.device) -> "Segments":
        """Build segments of these lengths; `prompts`: the number of the segment that each follows, or None."""
        contexts = [0 if prompt is None else lengths[prompt] for prompt in prompts]
        ends = _ends(lengths).to(device, non_blocking=True)
        seen, seen_ends = None, ends
        if any(contexts):
            places = torch.split(torch.arange(sum(lengths)), [*lengths])
            pairs = [places[number] if prompt is None else torch.cat([places[prompt], places[number]])
                     for number, prompt in enumerate(prompts)]  # fmt: skip
            seen = torch.cat(pairs).to(device, non_blocking=True)
            seen_ends = _ends([*map(len, pairs)]).to(device, non_blocking=True)
        return cls(
            lengths=tuple(lengths),
            contexts=tuple(contexts),
            ends=ends,
            seen=seen,
            seen_ends=seen_ends,
            longest=max(lengths),
            longest_seen=max(map(add, lengths, contexts)),
        )

    @property
    def groups(self) -> list[Group]:
        """Return all segments in order, neighbours of one shape together."""
        same = groupby(zip(self.lengths, self.contexts, strict=True))
        return [Group(length, context, len([*each])) for (length, context), each in same]

    def mask(self, group: Group, window: int | None, like: Tensor) -> Tensor:
        """Return the mask to add to a group's scores: 0 for the last `window` keys up to the query (None: all), else -inf.

        [length, seen], of the type of `like` and on its device. The queries are the last of the keys.
        """
        key = (group.length, group.seen, window)
        if key not in self._masks:
            allowed = torch.ones(group.length, group.seen, dtype=torch.bool, device=like.device).tril(group.context)
            if window is not None:
                allowed = allowed.triu(group.context + 1 - window)
            self._masks[key] = like.new_zeros(allowed.shape).masked_fill_(~allowed, -torch.inf)
        return self._masks[key]


def _ends(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([*accumulate(lengths, initial=0)], dtype=torch.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Sequence, or its part after a prompt that it shares with others."""

    token_ids: Tensor  # [tokens] int64
    loss_mask: Tensor  # [tokens] bool
    prompt: int | None  # the number of the shared prompt; None: the sequence is whole


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """Sequences end to end, from the shortest to the longest: those of one length are neighbours, and are attended to together.

    Shared prompts come first. Example: the sequence (5, 6, 7) with mask (F, F, T) and (8, 9) with mask (F, T): input_ids
    [[8, 9, 5, 6, 7]], position_ids [[0, 1, 0, 1, 2]], rows [0, 1], columns [3, 0], targets [7, 9].
    """

    input_ids: Tensor  # [1, all tokens] int64
    position_ids: Tensor  # [1, all tokens] int64, from 0 in each sequence
    segments: Segments
    rows: Tensor  # [tokens] int64: the sequence of each trained token, from 0, ascending, in the order in which they were given
    columns: Tensor  # [tokens] int64: the index that predicts it, one before its own
    targets: Tensor  # [tokens] int64: the token itself
    support: PaddedSupport | None = None  # sampling mask of the trained tokens; None: the whole vocabulary

    @classmethod
    def of(cls, sequences: Sequence[Tail], prompts: Sequence[Tensor], device: torch.device) -> "PackedBatch":
        """Pack sequences; `prompts`: the shared ones, [tokens] each. The CPU lays them out, so that the device need not be waited for."""
        before = [0 if each.prompt is None else len(prompts[each.prompt]) for each in sequences]
        order = sorted(range(len(sequences)), key=lambda number: (len(sequences[number].token_ids), before[number]))
        parts = [*prompts, *(sequences[number].token_ids for number in order)]
        lengths = [len(part) for part in parts]
        starts = dict(zip(order, [*accumulate(lengths, initial=0)][len(prompts) :], strict=False))
        own = [each.loss_mask[1:].nonzero()[:, 0] for each in sequences]  # the indices that predict trained tokens
        input_ids = torch.cat(parts)
        columns = torch.cat([places + starts[number] for number, places in enumerate(own)])
        rows = torch.arange(len(own)).repeat_interleave(torch.tensor([len(places) for places in own]))
        follows = [*[None] * len(prompts), *(sequences[number].prompt for number in order)]
        segments = Segments.of(lengths, follows, device)
        positions = [
            torch.arange(first, first + length) for first, length in zip(segments.contexts, lengths, strict=True)
        ]
        return cls(
            input_ids=input_ids[None].to(device, non_blocking=True),
            position_ids=torch.cat(positions)[None].to(device, non_blocking=True),
            segments=segments,
            rows=rows.to(device, non_blocking=True),
            columns=columns.to(device, non_blocking=True),
            targets=input_ids[columns + 1].to(device, non_blocking=True),
        )

    @property
    def longest(self) -> int:
        """Return the tokens of the longest sequence, its prompt included."""
        return self.segments.longest_seen

    def predicting(self, hidden: Tensor) -> Tensor:
        """Return the hidden states that predict the trained tokens, of those of all: [1, all tokens, width] -> [tokens, width]"""
        return hidden[0, self.columns]
