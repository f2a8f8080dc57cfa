"""What each token weighs, computed by hand: two sequences of 1 and 3 tokens, at most 5 new tokens."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest
import torch

from dagrpo.algorithms.aggregation import Aggregation, Lengths, weights

SEQUENCE = torch.tensor([0, 1, 1, 1])
LENGTHS = Lengths(tokens=[1, 3], prompts=[0, 1])
LOSSES = torch.tensor([4.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("aggregation", "loss"),
    [
        ("token-mean", 10 / 4),
        ("seq-mean-token-mean", (4 + 2) / 2),
        ("seq-mean-token-sum", (4 + 6) / 2),
        ("prompt-mean", (4 + 2) / 2),
        ("constant", (4 + 6) / 2 / 5),
    ],
)
def test_the_loss_of_a_mini_batch_is_the_hand_computed_one(aggregation: Aggregation, loss: float) -> None:
    token_weights, denominator = weights(aggregation, SEQUENCE, 0, LENGTHS, max_new_tokens=5)
    assert float((LOSSES * token_weights).sum() / denominator) == pytest.approx(loss)


def test_prompt_mean_weighs_prompts_alike_and_the_tokens_of_all_their_sequences_alike() -> None:
    """Sequences of 1, 3 and 2 tokens, the first two of one prompt: its tokens weigh 1/4 of a half each, the others 1/2."""
    sequence, lengths = torch.tensor([0, 1, 1, 1, 2, 2]), Lengths(tokens=[1, 3, 2], prompts=[4, 4, 7])
    token_weights, denominator = weights("prompt-mean", sequence, 0, lengths, max_new_tokens=5)
    assert (token_weights / denominator).tolist() == [1 / 8] * 4 + [1 / 4] * 2


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_sequences_that_do_not_count_change_no_weight(aggregation: Aggregation) -> None:
    """Of three sequences the one in the middle has no length: the others weigh what they weigh without it."""
    alone, of_alone = weights(aggregation, SEQUENCE, 0, LENGTHS, max_new_tokens=5)
    beside = Lengths(tokens=[1, 0, 3], prompts=[0, 0, 1])
    sequence = torch.tensor([0, 1, 1, 2, 2, 2])
    among, of_all = weights(aggregation, sequence, 0, beside, max_new_tokens=5)
    assert (among[[0, 3, 4, 5]] / of_all).tolist() == pytest.approx((alone / of_alone).tolist())


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
