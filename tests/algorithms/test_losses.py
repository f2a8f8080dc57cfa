"""Losses and the divergence, computed by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.batches import ratios

from dagrpo.algorithms.divergence import Estimator
from dagrpo.algorithms.divergence import divergence as estimate
from dagrpo.algorithms.losses import aggregation_of
from dagrpo.algorithms.losses.ppo_clip import Config as PpoClip
from dagrpo.algorithms.losses.ppo_clip import ppo_clip
from dagrpo.algorithms.losses.sequence_ratios import Gspo, gspo
from dagrpo.algorithms.tokens import TokenBatch

PPO = PpoClip(name="ppo_clip", clip_low=0.2, clip_high=0.28)
GSPO = Gspo(name="gspo", clip_low=0.1, clip_high=0.1)


def _gradient(batch: TokenBatch, loss: torch.Tensor) -> list[float]:
    (gradient,) = torch.autograd.grad(loss, batch.logprobs)
    return [round(value, 12) for value in gradient.tolist()]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, 0),
        (1.5, 2.0, -2.56, 1),  # a good token is pushed no further than 1 + clip_high
        (0.5, 2.0, -1.0, 0),
        (0.5, -1.0, 0.8, 1),  # a bad token is pushed no further than 1 - clip_low
        (1.5, -1.0, 1.5, 0),
    ],
)
def test_the_clipped_loss_has_the_hand_computed_value(
    ratio: float, advantage: float, loss: float, clipped: int
) -> None:
    result = ppo_clip(ratios([[ratio]], [advantage]), PPO)
    assert float(result.per_token.detach()) == pytest.approx(loss)
    assert int(result.metrics["clip_fraction"]) == clipped


def test_a_clipped_token_has_no_gradient_and_an_unclipped_one_the_policy_gradient() -> None:
    batch = ratios([[1.5, 1.0]], [1.0])
    assert _gradient(batch, ppo_clip(batch, PPO).per_token.sum()) == [0.0, -1.0]


def test_the_ratio_of_gspo_is_the_geometric_mean_over_the_sequence() -> None:
    # Ratios 1.21 and 1 of one sequence: sqrt(1.21) = 1.1 on both tokens. 1.5 of the other is clipped at 1.1.
    result = gspo(ratios([[1.21, 1.0], [1.5]], [1.0, 1.0]), GSPO)
    assert result.per_token.tolist() == pytest.approx([-1.1, -1.1, -1.1])
    assert int(result.metrics["clip_fraction"]) == 1


def test_each_loss_brings_the_aggregation_that_it_was_published_with() -> None:
    assert aggregation_of("default", PPO) == "token-mean"
    assert aggregation_of("default", GSPO) == "seq-mean-token-mean"
    assert aggregation_of("constant", GSPO) == "constant"


def k3(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    return estimate(logprobs, reference_logprobs, "k3")


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", math.log(2), 1.0),
        ("abs", math.log(2), 1.0),
        ("k2", math.log(2) ** 2 / 2, math.log(2)),
        ("k3", 0.5 - 1 + math.log(2), 1 - 0.5),
        ("k1+", math.log(2), math.log(2)),
        ("abs+", math.log(2), math.log(2)),
        ("k3+", 0.5 - 1 + math.log(2), math.log(2)),
    ],
)
def test_estimators_have_the_hand_computed_value_and_gradient(
    estimator: Estimator, value: float, gradient: float
) -> None:
    """Policy probability 1/2, reference 1/4: d = log 2. Derivatives by d: 1, 1, d, 1 - exp(-d); with + that of k2."""
    logprobs = torch.tensor([0.5], dtype=torch.float64).log().requires_grad_()
    result = estimate(logprobs, torch.tensor([0.25], dtype=torch.float64).log(), estimator)
    assert float(result.detach()) == pytest.approx(value, abs=1e-12)
    assert float(torch.autograd.grad(result.sum(), logprobs)[0]) == pytest.approx(gradient, abs=1e-12)


@given(st.floats(-30, 0), st.floats(-30, 0))
def test_k3_is_never_negative_and_zero_where_the_policies_agree(policy: float, reference: float) -> None:
    value = float(k3(torch.tensor([policy], dtype=torch.float64), torch.tensor([reference], dtype=torch.float64)))
    assert value >= -1e-12
    assert float(k3(torch.tensor([policy]), torch.tensor([policy]))) == 0.0
