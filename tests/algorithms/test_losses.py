"""Losses and the divergence, computed by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.batches import ratios

from dagrpo.algorithms.aggregation import Lengths, weights
from dagrpo.algorithms.divergence import Estimator
from dagrpo.algorithms.divergence import divergence as estimate
from dagrpo.algorithms.losses import aggregation_of, loss_of
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


def test_the_gradient_of_gspo_is_the_hand_computed_one() -> None:
    """1.1 * advantage 1, over 2 tokens and 2 sequences: -0.275 on each token; nothing where the sequence is clipped."""
    batch = ratios([[1.21, 1.0], [1.5]], [1.0, 1.0])
    token_weights, denominator = weights(
        "seq-mean-token-mean", batch.sequence, 0, Lengths(tokens=[2, 1], prompts=[0, 0]), max_new_tokens=9
    )
    loss = (gspo(batch, GSPO).per_token * token_weights).sum() / denominator
    assert _gradient(batch, loss) == pytest.approx([-0.275, -0.275, 0.0])


def test_the_gradient_of_gspo_is_that_of_the_published_sequence_loss() -> None:
    """Equation 5 written out: the mean over sequences of min(s A, clip(s) A), differentiated by torch."""
    batch = ratios([[1.05, 0.98, 1.01], [0.9, 0.97], [1.3]], [0.7, -0.4, -1.0])
    token_weights, denominator = weights(
        "seq-mean-token-mean", batch.sequence, 0, Lengths(tokens=[3, 2, 1], prompts=[0, 0, 1]), max_new_tokens=9
    )
    ours = (gspo(batch, GSPO).per_token * token_weights).sum() / denominator
    log_ratio = batch.logprobs - batch.old_logprobs
    s = torch.stack([log_ratio[batch.sequence == row].mean().exp() for row in range(3)])
    advantages = torch.tensor([0.7, -0.4, -1.0], dtype=torch.float64)
    published = -torch.minimum(s * advantages, s.clamp(0.9, 1.1) * advantages).mean()
    assert float(ours.detach()) == pytest.approx(float(published.detach()))
    assert _gradient(batch, ours) == pytest.approx(_gradient(batch, published))


def test_each_loss_brings_the_aggregation_that_it_was_published_with() -> None:
    assert aggregation_of("default", PPO) == "token-mean"
    assert aggregation_of("default", GSPO) == "seq-mean-token-mean"
    assert aggregation_of("constant", GSPO) == "constant"


def test_a_loss_is_found_by_the_name_in_its_parameters() -> None:
    batch = ratios([[1.21, 1.0]], [1.0])
    assert loss_of(batch, GSPO).per_token.tolist() == gspo(batch, GSPO).per_token.tolist()
    assert loss_of(batch, PPO).per_token.tolist() == ppo_clip(batch, PPO).per_token.tolist()


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
