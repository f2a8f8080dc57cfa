import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.algorithms.divergence import k3
from dagrpo.algorithms.losses.ppo_clip import ppo_clip


def _loss(ratio: float, advantage: float) -> tuple[float, bool]:
    old = torch.tensor([-1.0], dtype=torch.float64)
    result = ppo_clip(old + math.log(ratio), old, torch.tensor([advantage], dtype=torch.float64), 0.2, 0.28)
    return float(result.per_token[0]), bool(result.clipped[0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.5, 2.0, -2.56, True),  # a good token is pushed no further than 1 + clip_high
        (0.5, 2.0, -1.0, False),
        (0.5, -1.0, 0.8, True),  # a bad token is pushed no further than 1 - clip_low
        (1.5, -1.0, 1.5, False),
    ],
)
def test_the_clipped_loss_has_the_hand_computed_value(
    ratio: float, advantage: float, loss: float, clipped: bool
) -> None:
    value, was_clipped = _loss(ratio, advantage)
    assert value == pytest.approx(loss)
    assert was_clipped is clipped


def test_a_clipped_token_has_no_gradient_and_an_unclipped_one_the_policy_gradient() -> None:
    logprobs = torch.tensor([math.log(1.5), 0.0], requires_grad=True)
    ppo_clip(logprobs, torch.zeros(2), torch.tensor([1.0, 1.0]), 0.2, 0.2).per_token.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, -1.0]


def test_k3_has_the_hand_computed_value() -> None:
    # policy probability 0.5, reference 0.25: d = log(1/2), 1/2 - log(1/2) - 1
    value = k3(torch.tensor([0.5]).log(), torch.tensor([0.25]).log())
    assert float(value) == pytest.approx(0.5 + math.log(2) - 1)


@given(st.floats(-30, 0), st.floats(-30, 0))
def test_k3_is_never_negative_and_zero_where_the_policies_agree(policy: float, reference: float) -> None:
    value = float(k3(torch.tensor([policy], dtype=torch.float64), torch.tensor([reference], dtype=torch.float64)))
    assert value >= -1e-12
    assert float(k3(torch.tensor([policy]), torch.tensor([policy]))) == 0.0


def test_the_mean_of_k3_over_samples_is_the_divergence() -> None:
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    divergence = (policy * (policy / reference).log()).sum()
    assert float((policy * k3(policy.log(), reference.log())).sum()) == pytest.approx(float(divergence), abs=1e-6)
