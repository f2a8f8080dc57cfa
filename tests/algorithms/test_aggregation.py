"""What each token weighs, computed by hand: two sequences of 1 and 3 tokens, at most 5 new tokens."""

import pytest
import torch

from dagrpo.algorithms.aggregation import Aggregation, weights

SEQUENCE = torch.tensor([0, 1, 1, 1])
LOSSES = torch.tensor([4.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("aggregation", "loss"),
    [
        ("token-mean", 10 / 4),
        ("seq-mean-token-mean", (4 + 2) / 2),
        ("seq-mean-token-sum", (4 + 6) / 2),
        ("constant", (4 + 6) / 2 / 5),
    ],
)
def test_the_loss_of_a_mini_batch_is_the_hand_computed_one(aggregation: Aggregation, loss: float) -> None:
    token_weights, denominator = weights(aggregation, SEQUENCE, [1, 3], max_new_tokens=5)
    assert float((LOSSES * token_weights).sum() / denominator) == pytest.approx(loss)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant"])
def test_micro_batches_add_up_to_the_mini_batch(aggregation: Aggregation) -> None:
    whole, denominator = weights(aggregation, SEQUENCE, [1, 3], max_new_tokens=5)
    first, of_first = weights(aggregation, SEQUENCE[:1], [1, 3], max_new_tokens=5)
    second, of_second = weights(aggregation, SEQUENCE[1:] - 1, [1, 3], max_new_tokens=5)
    parts = (LOSSES[:1] * first).sum() / of_first + (LOSSES[1:] * second).sum() / of_second
    assert float(parts) == pytest.approx(float((LOSSES * whole).sum() / denominator))


def test_the_weights_of_token_mean_are_exactly_one() -> None:
    token_weights, denominator = weights("token-mean", SEQUENCE, [1, 3], max_new_tokens=5)
    assert token_weights.tolist() == [1.0] * 4
    assert denominator == 4.0
