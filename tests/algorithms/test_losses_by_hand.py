"""Losses on one to four tokens, computed by hand; what the old policy gave a token has the logprob -1 throughout."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.batches import ratios

from dagrpo.algorithms.losses import LOSSES, aggregation_of, loss_of
from dagrpo.algorithms.losses.selecting import ClipCov, KlCov, TopEntropy
from dagrpo.algorithms.losses.selecting import draw_from_band as drawn
from dagrpo.algorithms.losses.selecting import select_largest as largest
from dagrpo.algorithms.losses.selecting import select_least_sure as least_sure
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice

ENGINE = torch.tensor([-1.0, -1.0 - math.log(2)], dtype=torch.float64)  # the engine gave the second token half as much


def config_of(name: str, **keys: Any) -> Choice:
    config: Choice = LOSSES.get(name).config.model_validate({"name": name, **keys})
    return config


def values(batch: TokenBatch, name: str, **keys: Any) -> list[float]:
    return loss_of(batch, config_of(name, **keys)).per_token.tolist()


def gradient(batch: TokenBatch, name: str, **keys: Any) -> list[float]:
    (result,) = torch.autograd.grad(loss_of(batch, config_of(name, **keys)).per_token.sum(), batch.logprobs)
    return result.tolist()


def test_a_dual_clip_bounds_the_loss_of_a_bad_token_that_has_become_likely() -> None:
    """Ratio 5, advantage -2: 10 as PPO has it, no more than 3 * 2 = 6 with a dual clip of 3. A good one stays at -1.2."""
    batch = ratios([[5.0, 2.0], [5.0]], [-2.0, 1.0])
    assert values(batch, "ppo_clip") == pytest.approx([10, 4, -1.2])
    assert values(batch, "ppo_clip", dual_clip=3.0) == pytest.approx([6, 4, -1.2])
    assert gradient(batch, "ppo_clip", dual_clip=3.0) == pytest.approx([0, 4, 0])
    assert int(loss_of(batch, config_of("ppo_clip", dual_clip=3.0)).metrics["dual_clip_fraction"]) == 1


@given(st.floats(0.01, 50), st.floats(-3, 3), st.floats(1.3, 10))
def test_the_two_sided_clip_of_intellect_2_is_a_dual_clip(ratio: float, advantage: float, delta: float) -> None:
    """Its objective, written out: min(min(rho, delta) A, clip(rho) A)."""
    published = -min(min(ratio, delta) * advantage, min(max(ratio, 0.8), 1.2) * advantage)
    assert values(ratios([[ratio]], [advantage]), "ppo_clip", dual_clip=delta) == pytest.approx([published])


def test_cispo_cuts_the_weight_and_keeps_the_gradient_of_every_token() -> None:
    """Ratio 8 is cut to 5: -5 * 1 * logprob, whose gradient is -5; ratio 0.5 stays."""
    batch = ratios([[8.0, 0.5]], [1.0])
    logprob = -1 + math.log(8)
    assert values(batch, "cispo") == pytest.approx([-5 * logprob, -0.5 * (-1 + math.log(0.5))])
    assert gradient(batch, "cispo") == pytest.approx([-5, -0.5])
    assert gradient(batch, "cispo", minimum=0.8) == pytest.approx([-5, -0.8])


def test_cispo_may_take_its_ratio_to_the_engines_logprobs() -> None:
    """Ratio 1 to the old policy is ratio 2 to the engine for the second token."""
    batch = ratios([[1.0, 1.0]], [1.0], rollout_logprobs=ENGINE)
    assert gradient(batch, "cispo") == pytest.approx([-1, -1])
    assert gradient(batch, "cispo", anchor="rollout") == pytest.approx([-1, -2])


def test_the_gate_of_sapo_has_the_hand_computed_value_and_gradient() -> None:
    """At ratio 1 sigmoid(0) * 4 = 2 for a good token, 2 / 1.05 for a bad one; derivatives -A.

    At ratio 2, tau 1: 4 / (1 + 1/e) = 2.924235, and 2 * 4 * 0.731059 * 0.268941 = 1.572895 by the logprob.
    """
    batch = ratios([[1.0], [1.0], [2.0]], [1.0, -1.0, 1.0])
    assert values(batch, "sapo") == pytest.approx([-2, 2 / 1.05, -2.924235], abs=1e-6)
    assert gradient(batch, "sapo") == pytest.approx([-1, 1, -1.572895], abs=1e-6)


def test_gmpo_clips_each_token_and_takes_the_geometric_mean() -> None:
    """Ratios e and e^0.2, advantage 1: the first counts as e^0.4, so that the mean is e^0.3 and the first has no gradient."""
    batch = ratios([[math.e, math.exp(0.2)], [math.e]], [1.0, -1.0])
    assert values(batch, "gmpo") == pytest.approx([-math.exp(0.3), -math.exp(0.3), math.e])
    assert gradient(batch, "gmpo") == pytest.approx([0, -math.exp(0.3), math.e])


def test_dis_leaves_out_tokens_on_both_sides_whatever_the_advantage() -> None:
    """1.2 is inside (0.8, 1.28); 1.3 and 0.7 are not, although the loss would bring 0.7 back."""
    batch = ratios([[1.2, 1.3, 0.7]], [1.0])
    assert gradient(batch, "dis") == pytest.approx([-1.2, 0, 0])
    assert values(batch, "dis")[0] == pytest.approx(-1.2 * (-1 + math.log(1.2)))


def test_dppo_bounds_what_a_probability_moves_not_its_ratio() -> None:
    """From e^-1 = 0.368 by the ratio 1.3 to 0.478: moved by 0.110, inside 0.15. By 1.5: by 0.184, outside.

    From e^-7 = 0.0009 by the ratio 10: moved by 0.008. Where A < 0, moving up is never too far: its weight is the ratio.
    """
    rare = torch.full((1,), -7.0, dtype=torch.float64)
    unlikely = replace(ratios([[10.0]], [1.0]), logprobs=(rare + math.log(10)).requires_grad_(), rollout_logprobs=rare)
    assert gradient(ratios([[1.3, 1.5], [1.5]], [1.0, -1.0]), "dppo") == pytest.approx([-1.3, 0, 1.5])
    assert gradient(unlikely, "dppo") == pytest.approx([-10])
    assert gradient(unlikely, "dppo", maximum=4.0) == pytest.approx([-4])


def test_dppo_clips_no_token_without_an_advantage() -> None:
    batch = ratios([[0.1], [0.1]], [0.0, -1.0])
    assert LOSSES.get("dppo").function(batch, config_of("dppo")).metrics["clip_fraction"] == 1


def test_dppo_may_bound_the_divergence_of_token_or_not_token() -> None:
    """0.5 to 0.75: 0.5 log(2/3) + 0.5 log 2 = 0.143841."""
    half = torch.tensor([0.5], dtype=torch.float64).log()
    batch = replace(ratios([[1.5]], [1.0]), logprobs=(half + math.log(1.5)).requires_grad_(), rollout_logprobs=half)
    assert gradient(batch, "dppo", divergence="kl") == pytest.approx([0])  # 0.05 as published
    assert gradient(batch, "dppo", divergence="kl", limit_high=0.1438) == pytest.approx([0])
    assert gradient(batch, "dppo", divergence="kl", limit_high=0.1439) == pytest.approx([-1.5])


def test_minirl_weighs_by_the_engine_and_masks_by_the_old_policy() -> None:
    """Ratio 1.2 to the old policy is 2.4 to the engine; 1.3 to the old one is masked where A > 0, not where A < 0."""
    batch = ratios([[1.2, 1.2], [1.3, 1.3]], [1.0, -1.0], rollout_logprobs=ENGINE.repeat(2))
    assert gradient(batch, "minirl") == pytest.approx([-1.2, -2.4, 1.3, 2.6])
    assert gradient(replace(batch, advantages=batch.advantages.abs()), "minirl")[2:] == [0, 0]
    assert gradient(batch, "minirl", maximum=2.0) == pytest.approx([-1.2, -2, 1.3, 2])


def test_vespo_weighs_a_sequence_by_the_product_of_its_ratios() -> None:
    """Ratios 2 and 1/4: W = 1/2. A > 0: (1/2)^2 e^(3/2) = 1.120422; A < 0: (1/2)^3 e^1 = 0.339785. On-policy: 1."""
    batch = ratios([[2.0, 0.25], [2.0, 0.25], [1.0]], [1.0, -1.0, 1.0])
    expected = [-1.120422, -1.120422, 0.339785, 0.339785, -1]
    assert gradient(batch, "vespo") == pytest.approx(expected, abs=1e-6)


def test_luspo_is_gspo_times_the_length_of_each_sequence() -> None:
    batch = ratios([[1.21, 1.0], [1.5]], [1.0, 1.0])
    keys = {"clip_low": 0.1, "clip_high": 0.1}
    assert values(batch, "luspo", **keys) == values(batch, "gspo", **keys)
    assert aggregation_of("default", config_of("luspo")) == "seq-mean-token-sum"


def test_dro_adds_the_square_of_the_log_ratio() -> None:
    """Log-ratio log 2 = 0.693147, beta 0.5: -(2 * (log 2 - 1) - 0.25 * log(2)^2) = 0.733819; derivative -2 + 0.5 log 2."""
    batch = ratios([[2.0]], [2.0])
    assert values(batch, "dro", beta=0.5) == pytest.approx([0.733819], abs=1e-6)
    assert gradient(batch, "dro", beta=0.5) == pytest.approx([-2 + 0.5 * math.log(2)])


def _mini_batch(logprobs: list[float], advantages: list[float], seed: int = 0) -> MiniBatch:
    """Entropy is minus the logprob."""
    numbers = torch.tensor(logprobs)
    return MiniBatch(logprobs=numbers, entropy=-numbers, advantages=torch.tensor(advantages), seed=seed)


def test_covariances_have_the_hand_computed_values() -> None:
    """Means -2 and 0: (-1 + 2)(3 - 0), (-2 + 2)(-3), (-3 + 2)(0)."""
    assert _mini_batch([-1, -2, -3], [3, -3, 0]).covariances.tolist() == [3, 0, 0]


def test_kl_cov_holds_back_the_tokens_with_the_largest_covariance() -> None:
    """Covariances of four tokens, with means -2.5 and 0: 4.5, -0.5, -0.5, 4.5. A share of a half is two of them."""
    batch = _mini_batch([-1, -2, -3, -4], [3, -1, 1, -3])
    assert largest(batch, KlCov(name="kl_cov", share=0.5)).tolist() == [1, 0, 0, 1]
    assert sum(largest(batch, KlCov(name="kl_cov")).tolist()) == 1  # at least one


def test_a_share_of_the_tokens_is_rounded_down_but_not_by_the_rounding_of_the_share() -> None:
    """0.29 * 100 is 28.999999999999996 in double precision."""
    batch = _mini_batch([-1.0, -3.0] * 50, [1.0, -1.0] * 50)  # a covariance of 1 each
    band = ClipCov(name="clip_cov", share=0.29, covariance_low=0.5)
    assert largest(batch, KlCov(name="kl_cov", share=0.29)).sum() == 29
    assert drawn(batch, band).sum() == 29
    assert largest(batch, KlCov(name="kl_cov", share=0.299)).sum() == 29


def test_the_penalty_of_kl_cov_is_on_selected_tokens_alone() -> None:
    """Ratio 2, advantage 1: -2; selected, with coefficient 0.5: + 0.5 log 2, whose derivative is 0.5."""
    batch = ratios([[2.0, 2.0]], [1.0], selected=torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert values(batch, "kl_cov", coefficient=0.5) == pytest.approx([-2, -2 + 0.5 * math.log(2)])
    assert gradient(batch, "kl_cov", coefficient=0.5) == pytest.approx([-2, -1.5])


def test_clip_cov_draws_from_the_band_by_the_seed_of_the_mini_batch() -> None:
    """200 tokens with covariance 1, 200 with -1. Of the former, and at most a share of 400: 100, others for another seed."""
    logprobs, advantages = [-1.0, -3.0] * 200, [1.0, -1.0] * 100 + [-1.0, 1.0] * 100
    config = ClipCov(name="clip_cov", share=0.25, covariance_low=0.5, covariance_high=1.5)
    first, again, other = (drawn(_mini_batch(logprobs, advantages, seed), config) for seed in (1, 1, 2))
    assert first.sum() == other.sum() == 100
    assert first[200:].sum() == 0
    assert first.tolist() == again.tolist() != other.tolist()


def test_clip_cov_leaves_selected_tokens_out_of_the_loss_of_ppo() -> None:
    batch = ratios([[1.1, 1.1]], [1.0], selected=torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert values(batch, "clip_cov") == pytest.approx([-1.1, 0])
    assert gradient(batch, "clip_cov") == pytest.approx([-1.1, 0])


@pytest.mark.parametrize(
    ("share", "selected"), [(0.2, [0, 0, 0, 0, 1]), (0.5, [0, 0, 1, 1, 1]), (1.0, [1] * 5), (0.01, [0, 0, 0, 0, 1])]
)
def test_top_entropy_selects_down_to_the_quantile(share: float, selected: list[int]) -> None:
    """Of the entropies 1 to 5 the quantile 0.8 is 4.2, and 0.5 is 3."""
    batch = _mini_batch([-1, -2, -3, -4, -5], [0.0] * 5)
    assert least_sure(batch, TopEntropy(name="top_entropy", share=share)).tolist() == selected


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=30), st.integers(1, 64))
def test_top_entropy_selects_what_the_quantile_does_also_of_equal_entropies(entropies: list[float], of_64: int) -> None:
    batch = _mini_batch([-entropy for entropy in entropies], [0.0] * len(entropies))
    selected = least_sure(batch, TopEntropy(name="top_entropy", share=of_64 / 64))
    assert selected.bool().tolist() == (batch.entropy >= torch.quantile(batch.entropy, 1 - of_64 / 64)).tolist()


def test_top_entropy_counts_the_other_tokens_in_the_mean_but_not_in_the_loss() -> None:
    batch = ratios([[1.5, 1.1]], [1.0], selected=torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert values(batch, "top_entropy") == pytest.approx([0, -1.1])
    assert aggregation_of("default", config_of("top_entropy")) == "token-mean"


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ({"name": "ppo_clip", "dual_clip": 1.1}, "is not above 1 + clip_high (1.2)"),
        ({"name": "dppo", "limit_low": 1.5}, "limit_low (1.5) is above 1, which no two probabilities differ by"),
        ({"name": "dppo", "limit_high": 2.0}, "limit_high (2.0) is above 1, which no two probabilities differ by"),
        ({"name": "clip_cov", "covariance_low": 5.0}, "no token lies between them"),
        (
            {"name": "luspo", "clip_high": 0.2},
            "the ratio of luspo is a mean over a sequence, so delete them for 0.002 and 0.0025",
        ),
    ],
)
def test_bounds_that_exclude_each_other_are_refused(loss: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse({"algorithm": {"loss": loss}})
    assert words in str(refusal.value)


def test_luspo_with_the_mean_over_tokens_is_refused_for_being_gspo() -> None:
    with pytest.raises(UserError, match=r"is gspo: .* algorithm\.aggregation to default"):
        parse({"algorithm": {"loss": {"name": "luspo"}, "aggregation": "seq-mean-token-mean"}})
    parse({"algorithm": {"loss": {"name": "luspo"}, "aggregation": "constant"}})


def test_gspo_with_the_sum_over_tokens_is_refused_for_being_luspo() -> None:
    with pytest.raises(UserError, match=r"is luspo: take that loss, or"):
        parse({"algorithm": {"loss": {"name": "gspo"}, "aggregation": "seq-mean-token-sum"}})


ANCHORED: list[dict[str, Any]] = [
    {"name": "cispo", "anchor": "rollout"},
    *({"name": name} for name in ("dis", "dppo", "minirl", "vespo")),
]


@pytest.mark.parametrize("loss", ANCHORED, ids=lambda loss: str(loss["name"]))
def test_a_correction_on_top_of_a_ratio_to_the_engine_is_refused(loss: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="would correct the same difference twice"):
        parse({"algorithm": {"loss": loss}})
    parse({"algorithm": {"loss": loss, "correction": {"name": "none"}}})


@pytest.mark.parametrize("name", LOSSES.own_names())
def test_a_loss_says_whether_its_ratio_is_to_the_engine(name: str) -> None:
    """Another engine's logprobs change the loss of those that say so, and no other."""
    config = next((config_of(**loss) for loss in ANCHORED if loss["name"] == name), config_of(name))
    two = torch.ones(2, dtype=torch.float64)
    batch = ratios([[1.1, 0.9]], [1.0], selected=two, teacher_logprobs=-two / 2)
    other = replace(batch, rollout_logprobs=batch.rollout_logprobs - 0.05)
    changed = loss_of(batch, config).per_token.tolist() != loss_of(other, config).per_token.tolist()
    assert changed == LOSSES.get(name).anchored_on_rollout(config)
