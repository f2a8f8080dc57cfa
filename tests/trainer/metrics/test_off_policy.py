"""The distance between engine and trainer, computed by hand."""

import statistics
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.trainer.metrics.off_policy import effective_sample_size, off_policy_metrics

# Two trajectories, of two tokens and of one. The trainer finds them 1, 3/2 and 1/4 times as likely as the engine.
ROLLOUT, TRAINER, LENGTHS = [0.5, 0.5, 0.25], [0.5, 0.75, 0.0625], [2, 0, 1]
LOGPROBS = st.lists(st.floats(-15, 0), min_size=3, max_size=3)


def test_the_metrics_are_those_computed_by_hand() -> None:
    assert off_policy_metrics(np.log(ROLLOUT), np.log(TRAINER), LENGTHS) == pytest.approx(
        {
            "policy/off_policy_kl": -(log(1) + log(3 / 2) + log(1 / 4)) / 3,
            "policy/off_policy_k3_kl": (0 + (3 / 2 - 1 - log(3 / 2)) + (1 / 4 - 1 - log(1 / 4))) / 3,
            "policy/off_policy_trainer_perplexity": (1 / sqrt(0.5 * 0.75) + 16) / 2,
            "policy/off_policy_rollout_perplexity": (2 + 4) / 2,
            "policy/off_policy_perplexity_ratio": (1 / sqrt(3 / 2) + 4) / 2,
            "policy/off_policy_chi2_token": (1 + 9 / 4 + 1 / 16) / 3 - 1,
            "policy/off_policy_chi2_sequence": (9 / 4 + 1 / 16) / 2 - 1,
            "policy/off_policy_weight_mean": (1 + 3 / 2 + 1 / 4) / 3,
            "policy/off_policy_weight_min": 1 / 4,
            "policy/off_policy_weight_max": 3 / 2,
            "policy/off_policy_weight_std": statistics.pstdev([1, 3 / 2, 1 / 4]),
            "policy/off_policy_effective_sample_size": 2.75**2 / (3 * (1 + 9 / 4 + 1 / 16)),
            "policy/off_policy_outside_fraction": 1 / 3,
            "policy/off_policy_probability_correlation": statistics.correlation(ROLLOUT, TRAINER),
        },
        abs=1e-12,
    )


@given(LOGPROBS)
def test_an_engine_that_agrees_with_the_trainer_is_not_off_policy(logprobs: list[float]) -> None:
    metrics = off_policy_metrics(logprobs, logprobs, LENGTHS)
    zero = ("kl", "k3_kl", "chi2_token", "chi2_sequence", "weight_std", "outside_fraction")
    one = ("perplexity_ratio", "weight_mean", "weight_min", "weight_max", "effective_sample_size")
    assert {metrics[f"policy/off_policy_{name}"] for name in zero} == {0.0}
    assert [metrics[f"policy/off_policy_{name}"] for name in one] == pytest.approx([1.0] * len(one))


@given(LOGPROBS, LOGPROBS)
def test_every_metric_is_finite_and_within_its_range(rollout: list[float], trainer: list[float]) -> None:
    metrics = off_policy_metrics(rollout, trainer, LENGTHS)
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["policy/off_policy_k3_kl"] >= -1e-12
    assert 0 < metrics["policy/off_policy_effective_sample_size"] <= 1 + 1e-12
    assert -1 - 1e-9 <= metrics["policy/off_policy_probability_correlation"] <= 1 + 1e-9


def test_logprobs_that_no_model_has_do_not_overflow() -> None:
    metrics = off_policy_metrics([-1e6, -1.0, -1.0], [-1.0, -1e6, -1.0], LENGTHS)
    assert np.isfinite(list(metrics.values())).all()


def test_a_logprob_that_is_not_a_number_is_outside_and_leaves_no_mean_that_looks_right() -> None:
    metrics = off_policy_metrics([-1.0, -2.0, -1.0, -1.0], [float("nan"), -2.0, -1.0, -1.0], [2, 2])
    assert metrics["policy/off_policy_outside_fraction"] == 0.25
    assert np.isnan(metrics["policy/off_policy_k3_kl"])


def test_half_of_the_tokens_without_a_weight_are_half_of_the_samples() -> None:
    assert effective_sample_size(np.array([1.0, 1.0, 0.0, 0.0])) == 0.5
    assert effective_sample_size(np.zeros(3)) == 0.0
