"""How the work of a step grows with its completions."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from dagrpo.algorithms.aggregation import Aggregation, Lengths, weights


class CountedReads(Sequence[int]):
    """List that counts how many of its entries are read."""

    def __init__(self, values: list[int]) -> None:
        self.values = values
        self.reads = 0

    def __getitem__(self, place: Any) -> Any:
        found = self.values[place]
        self.reads += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        self.reads += len(self.values)
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)


def exponent(costs: Sequence[float]) -> float:
    """Growth of costs at sizes of which each is twice the one before."""
    return math.log2(costs[-1] / costs[0]) / (len(costs) - 1)


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "prompt-mean", "constant"]
)
def test_a_micro_batch_reads_the_lengths_of_its_own_sequences(aggregation: Aggregation) -> None:
    costs = []
    for count in (64, 128, 256):
        tokens = CountedReads([3] * count)
        lengths = Lengths(tokens=tokens, prompts=[place // 4 for place in range(count)])
        for first in range(count):
            weights(aggregation, torch.zeros(3).long(), first, lengths, max_new_tokens=3, sequences=1)
        costs.append(tokens.reads)
    assert exponent(costs) < 1.1, costs
