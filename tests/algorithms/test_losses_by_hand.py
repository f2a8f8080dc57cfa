"""Losses on one to five tokens and the divergence, computed by hand; the old policy gave every token the logprob -1."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.batches import ratios

from dagrpo.algorithms.divergence import Estimator, divergence
from dagrpo.algorithms.losses import LOSSES, loss_of
from dagrpo.algorithms.losses.selecting import ClipCov, KlCov, TopEntropy, draw_from_band
from dagrpo.algorithms.losses.selecting import select_largest as largest
from dagrpo.algorithms.losses.selecting import select_least_sure as least_sure
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice

E, LOG_2 = math.e, math.log(2)
ENGINE = torch.tensor([-1.0, -1.0 - LOG_2], dtype=torch.float64)  # the engine gave the second token half as much
SECOND = {"selected": torch.tensor([0.0, 1.0], dtype=torch.float64)}


def config_of(name: str, **keys: Any) -> Choice:
    config: Choice = LOSSES.get(name).config.model_validate({"name": name, **keys})
    return config


def values(batch: TokenBatch, name: str, **keys: Any) -> list[float]:
    return loss_of(batch, config_of(name, **keys)).per_token.tolist()


def gradient(batch: TokenBatch, name: str, **keys: Any) -> list[float]:
    (result,) = torch.autograd.grad(loss_of(batch, config_of(name, **keys)).per_token.sum(), batch.logprobs)
    return result.tolist()


# Name and keys of a loss, the ratios of each sequence's tokens, the sequences' advantages, the loss of each token, its derivative by the
# token's logprob (None: not worked out), and what else the batch holds.
BY_HAND: list[tuple[str, dict[str, Any], list[list[float]], list[float], list[float] | None, list[float] | None, Any]] = [
    # A good token is pushed no further than 1.28, a bad one no further than 0.8.
    ("ppo_clip", {"clip_high": 0.28}, [[1], [1.5], [0.5], [0.5], [1.5]], [2, 2, 2, -1, -1],
     [-2, -2.56, -1, 0.8, 1.5], [-2, 0, -1, 0, 1.5], {}),
    ("ppo_clip", {}, [[5, 2], [5]], [-2, 1], [10, 4, -1.2], [10, 4, 0], {}),
    # No more than 3 * 2 where the advantage is -2.
    ("ppo_clip", {"dual_clip": 3.0}, [[5, 2], [5]], [-2, 1], [6, 4, -1.2], [0, 4, 0], {}),
    # sqrt(1.21 * 1) = 1.1 on both tokens; 1.5 is clipped at 1.1.
    ("gspo", {"clip_low": 0.1, "clip_high": 0.1}, [[1.21, 1], [1.5]], [1, 1], [-1.1] * 3, None, {}),
    ("luspo", {"clip_low": 0.1, "clip_high": 0.1}, [[1.21, 1], [1.5]], [1, 1], [-1.1] * 3, None, {}),
    # Ratio 8 is cut to 5: -5 * logprob, whose gradient is -5; ratio 0.5 stays, or is raised to 0.8.
    ("cispo", {}, [[8, 0.5]], [1], [5 - 15 * LOG_2, 0.5 + 0.5 * LOG_2], [-5, -0.5], {}),
    ("cispo", {"minimum": 0.8}, [[8, 0.5]], [1], None, [-5, -0.8], {}),
    # Ratio 1 to the old policy is ratio 2 to the engine for the second token.
    ("cispo", {}, [[1, 1]], [1], None, [-1, -1], {"rollout_logprobs": ENGINE}),
    ("cispo", {"anchor": "rollout"}, [[1, 1]], [1], None, [-1, -2], {"rollout_logprobs": ENGINE}),
    # At ratio 1 sigmoid(0) * 4 = 2 for a good token, 2 / 1.05 for a bad one; derivatives -A.
    # At ratio 2, tau 1: 4 / (1 + 1/e) = 2.924235, and 2 * 4 * 0.731059 * 0.268941 = 1.572895 by the logprob.
    ("sapo", {}, [[1], [1], [2]], [1, -1, 1], [-2, 2 / 1.05, -2.924235], [-1, 1, -1.572895], {}),
    # The first counts as e^0.4, so that the mean of the first sequence is e^0.3 and the first token has no gradient.
    ("gmpo", {}, [[E, E**0.2], [E]], [1, -1], [-(E**0.3), -(E**0.3), E], [0, -(E**0.3), E], {}),
    # 1.2 is inside (0.8, 1.28); 1.3 and 0.7 are not, although the loss would bring 0.7 back.
    ("dis", {}, [[1.2, 1.3, 0.7]], [1], [1.2 - 1.2 * math.log(1.2), 0, 0], [-1.2, 0, 0], {}),
    # From e^-1 = 0.368 by the ratio 1.3 to 0.478: moved by 0.110, inside 0.15. By 1.5: by 0.184, outside; up is never too far where A < 0.
    ("dppo", {}, [[1.3, 1.5], [1.5]], [1, -1], None, [-1.3, 0, 1.5], {}),
    # Ratio 1.2 to the old policy is 2.4 to the engine; 1.3 to the old one is masked where A > 0, not where A < 0.
    ("minirl", {}, [[1.2, 1.2], [1.3, 1.3]], [1, -1], None, [-1.2, -2.4, 1.3, 2.6], {"rollout_logprobs": ENGINE.repeat(2)}),
    ("minirl", {}, [[1.3, 1.3]], [1], None, [0, 0], {"rollout_logprobs": ENGINE}),
    ("minirl", {"maximum": 2.0}, [[1.2, 1.2], [1.3, 1.3]], [1, -1], None, [-1.2, -2, 1.3, 2], {"rollout_logprobs": ENGINE.repeat(2)}),
    # Ratios 2 and 1/4: W = 1/2. A > 0: (1/2)^2 e^(3/2) = 1.120422; A < 0: (1/2)^3 e^1 = 0.339785. On-policy: 1.
    ("vespo", {}, [[2, 0.25], [2, 0.25], [1]], [1, -1, 1], None, [-1.120422, -1.120422, 0.339785, 0.339785, -1], {}),
    # -(2 * (log 2 - 1) - 0.25 * log(2)^2) = 0.733819.
    ("dro", {"beta": 0.5}, [[2]], [2], [0.733819], [-2 + 0.5 * LOG_2], {}),
    ("kl_cov", {"coefficient": 0.5}, [[2, 2]], [1], [-2, -2 + 0.5 * LOG_2], [-2, -1.5], SECOND),
    ("clip_cov", {}, [[1.1, 1.1]], [1], [-1.1, 0], [-1.1, 0], SECOND),
    ("top_entropy", {}, [[1.5, 1.1]], [1], [0, -1.1], [0, -1.1], SECOND),
]  # fmt: skip


@pytest.mark.parametrize(("name", "keys", "of_tokens", "advantages", "losses", "gradients", "changes"), BY_HAND)
def test_a_loss_and_its_gradient_are_those_computed_by_hand(
    name: str, keys: Any, of_tokens: Any, advantages: Any, losses: Any, gradients: Any, changes: Any
) -> None:
    batch = ratios(of_tokens, advantages, **changes)
    if losses is not None:
        assert values(batch, name, **keys) == pytest.approx(losses, abs=1e-6)
    if gradients is not None:
        assert gradient(batch, name, **keys) == pytest.approx(gradients, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "keys", "of_tokens", "advantages", "metric", "count"),
    [
        ("ppo_clip", {"clip_high": 0.28}, [[1.0], [1.5], [0.5], [0.5], [1.5]], [2, 2, 2, -1, -1], "clip_fraction", 2),
        ("ppo_clip", {"dual_clip": 3.0}, [[5.0, 2.0], [5.0]], [-2.0, 1.0], "dual_clip_fraction", 1),
        ("gspo", {"clip_low": 0.1, "clip_high": 0.1}, [[1.21, 1.0], [1.5]], [1.0, 1.0], "clip_fraction", 1),
        ("dppo", {}, [[0.1], [0.1]], [0.0, -1.0], "clip_fraction", 1),  # without an advantage nothing is clipped
    ],
)
def test_clipped_tokens_are_counted(
    name: str, keys: Any, of_tokens: Any, advantages: Any, metric: str, count: int
) -> None:
    assert int(loss_of(ratios(of_tokens, advantages), config_of(name, **keys)).metrics[metric]) == count


@given(st.floats(0.01, 50), st.floats(-3, 3), st.floats(1.3, 10))
def test_the_two_sided_clip_of_intellect_2_is_a_dual_clip(ratio: float, advantage: float, delta: float) -> None:
    """Its objective, written out: min(min(rho, delta) A, clip(rho) A)."""
    published = -min(min(ratio, delta) * advantage, min(max(ratio, 0.8), 1.2) * advantage)
    assert values(ratios([[ratio]], [advantage]), "ppo_clip", dual_clip=delta) == pytest.approx([published])


@pytest.mark.parametrize(
    ("engine", "ratio", "keys", "expected"),
    [
        # From e^-7 = 0.0009 by the ratio 10: moved by 0.008.
        (-7.0, 10.0, {}, -10),
        (-7.0, 10.0, {"maximum": 4.0}, -4),
        # 0.5 to 0.75: 0.5 log(2/3) + 0.5 log 2 = 0.143841, beyond 0.05 as published.
        (-LOG_2, 1.5, {"divergence": "kl"}, 0),
        (-LOG_2, 1.5, {"divergence": "kl", "limit_high": 0.1438}, 0),
        (-LOG_2, 1.5, {"divergence": "kl", "limit_high": 0.1439}, -1.5),
    ],
)
def test_dppo_bounds_what_a_probability_moves_not_its_ratio(
    engine: float, ratio: float, keys: Any, expected: float
) -> None:
    rollout = torch.full((1,), engine, dtype=torch.float64)
    moved = (rollout + math.log(ratio)).requires_grad_()
    batch = replace(ratios([[ratio]], [1.0]), logprobs=moved, rollout_logprobs=rollout)
    assert gradient(batch, "dppo", **keys) == pytest.approx([expected])


def _mini_batch(logprobs: list[float], advantages: list[float], seed: int = 0) -> MiniBatch:
    """Entropy is minus the logprob."""
    numbers = torch.tensor(logprobs)
    return MiniBatch(logprobs=numbers, entropy=-numbers, advantages=torch.tensor(advantages), seed=seed)


def test_kl_cov_selects_the_tokens_with_the_largest_covariance() -> None:
    """Means -2 and 0: (-1 + 2)(3 - 0), (-2 + 2)(-3), (-3 + 2)(0). Of four tokens, with means -2.5 and 0: 4.5, -0.5, -0.5, 4.5."""
    assert _mini_batch([-1, -2, -3], [3, -3, 0]).covariances.tolist() == [3, 0, 0]
    batch = _mini_batch([-1, -2, -3, -4], [3, -1, 1, -3])
    assert largest(batch, KlCov(name="kl_cov", share=0.5)).tolist() == [1, 0, 0, 1]
    assert sum(largest(batch, KlCov(name="kl_cov")).tolist()) == 1  # at least one


def test_a_share_of_the_tokens_is_rounded_down_but_not_by_the_rounding_of_the_share() -> None:
    """0.29 * 100 is 28.999999999999996 in double precision."""
    batch = _mini_batch([-1.0, -3.0] * 50, [1.0, -1.0] * 50)  # a covariance of 1 each
    assert largest(batch, KlCov(name="kl_cov", share=0.29)).sum() == 29
    assert draw_from_band(batch, ClipCov(name="clip_cov", share=0.29, covariance_low=0.5)).sum() == 29
    assert largest(batch, KlCov(name="kl_cov", share=0.299)).sum() == 29


def test_clip_cov_draws_from_the_band_by_the_seed_of_the_mini_batch() -> None:
    """200 tokens with covariance 1, 200 with -1. Of the former, and at most a share of 400: 100, others for another seed."""
    logprobs, advantages = [-1.0, -3.0] * 200, [1.0, -1.0] * 100 + [-1.0, 1.0] * 100
    config = ClipCov(name="clip_cov", share=0.25, covariance_low=0.5, covariance_high=1.5)
    first, again, other = (draw_from_band(_mini_batch(logprobs, advantages, seed), config) for seed in (1, 1, 2))
    assert first.sum() == other.sum() == 100
    assert first[200:].sum() == 0
    assert first.tolist() == again.tolist() != other.tolist()


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=30), st.integers(1, 64))
def test_top_entropy_selects_what_the_quantile_does_also_of_equal_entropies(entropies: list[float], of_64: int) -> None:
    batch = _mini_batch([-entropy for entropy in entropies], [0.0] * len(entropies))
    selected = least_sure(batch, TopEntropy(name="top_entropy", share=of_64 / 64))
    assert selected.bool().tolist() == (batch.entropy >= torch.quantile(batch.entropy, 1 - of_64 / 64)).tolist()


REFUSED = {
    "loss: {name: ppo_clip, clip_high: 0.1}": "is below clip_low",
    "loss: {name: ppo_clip, dual_clip: 1.1}": "is not above 1 + clip_high",
    "loss: {name: dppo, limit_low: 1.5}": "limit_low (1.5) is above 1",
    "loss: {name: dppo, limit_high: 2.0}": "limit_high (2.0) is above 1",
    "loss: {name: clip_cov, covariance_low: 5.0}": "no token lies between them",
    "loss: {name: luspo, clip_high: 0.2}": "the ratio of luspo is a mean over a sequence",
    "{loss: {name: luspo}, aggregation: seq-mean-token-mean}": "is gspo: take that loss",
    "{loss: {name: gspo}, aggregation: seq-mean-token-sum}": "is luspo: take that loss",
}


@pytest.mark.parametrize("values", REFUSED)
def test_bounds_that_exclude_each_other_and_another_losses_aggregation_are_refused(values: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse({"algorithm": yaml.safe_load(values)})
    assert REFUSED[values] in str(refusal.value)


ANCHORED: list[dict[str, Any]] = [
    {"name": "cispo", "anchor": "rollout"},
    *({"name": name} for name in ("dis", "dppo", "minirl", "vespo")),
]


@pytest.mark.parametrize("name", LOSSES.own_names())
def test_a_loss_whose_ratio_is_to_the_engine_takes_no_correction(name: str) -> None:
    """Another engine's logprobs change the loss of those that say so, and no other."""
    loss = next((loss for loss in ANCHORED if loss["name"] == name), {"name": name})
    config, two = config_of(**loss), torch.ones(2, dtype=torch.float64)
    batch = ratios([[1.1, 0.9]], [1.0], selected=two, teacher_logprobs=-two / 2)
    other = replace(batch, rollout_logprobs=batch.rollout_logprobs - 0.05)
    changed = loss_of(batch, config).per_token.tolist() != loss_of(other, config).per_token.tolist()
    assert changed == LOSSES.get(name).anchored_on_rollout(config) == (loss in ANCHORED)
    if changed:
        with pytest.raises(UserError, match="would correct the same difference twice"):
            parse({"algorithm": {"loss": loss}})
        parse({"algorithm": {"loss": loss, "correction": {"name": "none"}}})


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", LOG_2, 1.0),
        ("abs", LOG_2, 1.0),
        ("k2", LOG_2**2 / 2, LOG_2),
        ("k3", 0.5 - 1 + LOG_2, 1 - 0.5),
        ("k1+", LOG_2, LOG_2),
        ("abs+", LOG_2, LOG_2),
        ("k3+", 0.5 - 1 + LOG_2, LOG_2),
    ],
)
def test_estimators_have_the_hand_computed_value_and_gradient(
    estimator: Estimator, value: float, gradient: float
) -> None:
    """Policy probability 1/2, reference 1/4: d = log 2. Derivatives by d: 1, 1, d, 1 - exp(-d); with + that of k2."""
    logprobs = torch.tensor([0.5], dtype=torch.float64).log().requires_grad_()
    result = divergence(logprobs, torch.tensor([0.25], dtype=torch.float64).log(), estimator)
    assert float(result.detach()) == pytest.approx(value, abs=1e-12)
    assert float(torch.autograd.grad(result.sum(), logprobs)[0]) == pytest.approx(gradient, abs=1e-12)


@given(st.floats(-30, 0), st.floats(-30, 0))
def test_k3_is_never_negative_and_zero_where_the_policies_agree(policy: float, reference: float) -> None:
    one, other = (torch.tensor([each], dtype=torch.float64) for each in (policy, reference))
    assert float(divergence(one, other, "k3")) >= -1e-12
    assert float(divergence(one, one, "k3")) == 0.0
