"""Sequences of a row, cut where the loss mask changes.

The sequences are those that the trainer sees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Adjacent tokens of one kind. Written ones are one turn: between two turns there is always something."""

    token_ids: tuple[int, ...]
    written: bool  # by the policy, and trained on in this sequence


def segments(row: Mapping[str, Any]) -> tuple[tuple[Segment, ...], ...]:
    """Return the sequences of a row with columns as in ROLLOUTS, each as its segments in order."""
    samples = row.get("samples") or [_one_completion(row)]
    return tuple(_cut(sample["token_ids"], sample["loss_mask"]) for sample in samples)


def _one_completion(row: Mapping[str, Any]) -> dict[str, Any]:
    prompt, completion = row["prompt_ids"], row["completion_ids"]
    return {
        "token_ids": [*prompt, *completion],
        "loss_mask": [False] * len(prompt) + [True] * len(completion),
    }


def _cut(token_ids: Sequence[int], mask: Sequence[bool]) -> tuple[Segment, ...]:
    found: list[Segment] = []
    start = 0
    for end in range(1, len(mask) + 1):
        if end == len(mask) or mask[end] != mask[start]:
            found.append(Segment(token_ids=tuple(token_ids[start:end]), written=mask[start]))
            start = end
    return tuple(found)
