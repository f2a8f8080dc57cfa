"""What each token weighs, by aggregations, corrections and the off-policy mask, computed by hand."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.batches import ratios

from dagrpo.algorithms.aggregation import Aggregation, Lengths, weights
from dagrpo.algorithms.corrections import CORRECTIONS, TokenWeights, off_policy_mask, weights_of
from dagrpo.algorithms.tokens import TokenBatch

WEIGHING = [name for name in CORRECTIONS.own_names() if CORRECTIONS.get(name).weighs]
WEIGHTS = st.lists(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=4), min_size=1, max_size=4
)  # of tokens, by sequence


def engine(importance: Sequence[Sequence[float]], advantage: float = 1.0) -> TokenBatch:
    """Sequences of tokens, each by how much likelier the trainer finds it than the engine."""
    flat = torch.tensor([weight for sequence in importance for weight in sequence], dtype=torch.float64)
    on_policy = [[1.0] * len(sequence) for sequence in importance]
    return ratios(on_policy, [advantage] * len(importance), rollout_logprobs=-1.0 - flat.log())


def corrected(importance: Sequence[Sequence[float]], name: str, **keys: float) -> TokenWeights:
    return weights_of(engine(importance), CORRECTIONS.get(name).config(name=name, **keys))


@pytest.mark.parametrize(
    ("name", "keys", "expected", "masked"),
    [
        ("none", {}, [1, 1, 1, 1, 1, 1], 0),
        ("token_truncated", {"maximum": 2.0}, [0.4, 2, 2, 1.5, 1.5, 0.25], 0),
        ("token_masked", {"minimum": 0.5, "maximum": 5.0}, [0, 2, 0, 1.5, 1.5, 0], 3),
        # products: 0.4 * 2 * 8 = 6.4, 1.5 * 1.5 = 2.25 and 0.25
        ("sequence_truncated", {"maximum": 2.0}, [2, 2, 2, 2, 2, 0.25], 0),
        ("sequence_masked", {"maximum": 3.0}, [0, 0, 0, 2.25, 2.25, 0.25], 3),
        ("sequence_masked", {"minimum": 0.5, "maximum": 10.0}, [6.4, 6.4, 6.4, 2.25, 2.25, 0], 1),
        # geometric means: 6.4 ** (1 / 3) = 1.857, 1.5 and 0.25; the weights of the tokens stay as they are
        ("geometric_masked", {"minimum": 0.2, "maximum": 1.6}, [0, 0, 0, 1.5, 1.5, 0.25], 3),
        ("geometric_masked", {"minimum": 0.5, "maximum": 2.0}, [0.4, 2, 8, 1.5, 1.5, 0], 1),
    ],
)
def test_corrections_have_the_weights_computed_by_hand(
    name: str, keys: dict[str, float], expected: list[float], masked: int
) -> None:
    result = corrected([[0.4, 2.0, 8.0], [1.5, 1.5], [0.25]], name, **keys)
    assert result.per_token.tolist() == pytest.approx(expected, abs=1e-12)
    assert int(result.metrics.get("correction_masked_fraction", 0)) == masked


def test_what_was_cut_or_masked_is_counted_in_tokens_and_by_side() -> None:
    sequences = [[0.25, 8.0], [8.0], [1.0]]
    assert {n: int(v) for n, v in corrected(sequences, "token_truncated").metrics.items()} == {
        "correction_truncated_fraction": 2
    }
    # of the sequences 2 and 8 are above 2 or cut there, none is below
    assert int(corrected(sequences, "sequence_truncated").metrics["correction_truncated_fraction"]) == 1
    assert {n: int(v) for n, v in corrected(sequences, "token_masked").metrics.items()} == {
        "correction_masked_fraction": 3,
        "correction_below_fraction": 1,
        "correction_above_fraction": 2,
    }


@pytest.mark.parametrize("name", CORRECTIONS.own_names())
def test_where_engine_and_trainer_agree_every_token_weighs_exactly_one(name: str) -> None:
    result = corrected([[1.0, 1.0], [1.0]], name)
    assert result.per_token.tolist() == [1.0, 1.0, 1.0]
    assert {int(value) for value in result.metrics.values()} <= {0}


@pytest.mark.parametrize("name", CORRECTIONS.own_names())
@given(WEIGHTS)
def test_a_sequence_has_the_same_weights_alone_as_beside_others(name: str, importance: list[list[float]]) -> None:
    whole = corrected(importance, name)
    alone = [corrected([sequence], name) for sequence in importance]
    torch.testing.assert_close(whole.per_token, torch.cat([each.per_token for each in alone]), rtol=1e-12, atol=0)
    for metric, value in whole.metrics.items():
        assert int(value) == sum(int(each.metrics[metric]) for each in alone)


@pytest.mark.parametrize("name", WEIGHING)
def test_weights_are_finite_where_the_engine_found_a_token_impossible_and_have_no_gradient(name: str) -> None:
    batch = engine([[1.0, 1.0], [1.0]])
    far = torch.tensor([-1e9, -1.0, 0.0], dtype=torch.float64)
    changed = ratios([[1.0, 1.0], [1.0]], [1.0, 1.0], rollout_logprobs=far, old_logprobs=batch.logprobs)
    weights = weights_of(changed, CORRECTIONS.get(name).config(name=name)).per_token
    assert bool(weights.isfinite().all())
    assert not weights.requires_grad


@pytest.mark.parametrize(
    ("advantage", "threshold", "kept"),
    [
        # the mean log-ratios of engine to policy: log(4) / 2 = 0.69 nats, 0 and log(2) = 0.69, less than which 0.6 is
        (-1.0, 0.6, [False, False, True, False]),
        (-1.0, 0.7, [True, True, True, True]),
        (1.0, 0.6, [True, True, True, True]),
        (0.0, 0.6, [True, True, True, True]),
    ],
)
def test_mistakes_that_the_policy_has_moved_away_from_are_masked(
    advantage: float, threshold: float, kept: list[bool]
) -> None:
    batch = engine([[0.25, 1.0], [1.0], [0.5]], advantage)
    assert off_policy_mask(batch, threshold).tolist() == kept


def test_the_mask_sees_what_earlier_mini_batches_have_changed_and_advantages_token_by_token() -> None:
    """Engine and trainer agree; the policy now finds the first sequence half as likely as when it was sampled."""
    batch = ratios([[0.5, 0.5], [2.0]], [-1.0, -1.0])
    assert off_policy_mask(batch, 0.5).tolist() == [False, False, True]
    assert off_policy_mask(replace(batch, advantages=torch.tensor([-1.0, 1.0, -1.0])), 0.5).tolist() == [
        False,
        True,
        True,
    ]


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
