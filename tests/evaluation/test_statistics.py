"""Estimators and intervals against numbers worked out by hand."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.evaluation.statistics import (
    Estimate,
    Floats,
    Resampling,
    bootstrap,
    majority_correct,
    mean_over_seeds,
    paired_difference,
    pass_at_k,
    wilson,
)

RESAMPLING = Resampling(confidence=0.95, draws=400, seed=0)
per_problem = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=40).map(np.array)


def bounds(estimate: Estimate) -> tuple[float, float]:
    return (estimate.low, estimate.high)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.51, 0.999))
def test_wilson_interval_contains_the_share_and_stays_in_its_range(counts: tuple[int, int], confidence: float) -> None:
    estimate = wilson(*counts, confidence)
    assert -1e-12 <= estimate.low <= estimate.value <= estimate.high <= 1 + 1e-12


def test_bootstrap_agrees_with_the_normal_interval_on_many_problems() -> None:
    values = np.arange(1000) % 4 / 3  # mean 1/2, standard error sqrt(5/36/1000) = 0.011785
    estimate = bootstrap(values, Resampling(confidence=0.95, draws=4000, seed=1))
    assert bounds(estimate) == pytest.approx((0.5 - 0.0231, 0.5 + 0.0231), abs=0.0012)


def test_where_all_problems_agree_the_interval_is_the_wilson_interval() -> None:
    # centre = half = (z^2 / 20) / (1 + z^2 / 10) with z^2 = 3.841459: high = 3.841459 / 13.841459
    assert bounds(wilson(0, 10, 0.95)) == pytest.approx((0.0, 0.277533), abs=1e-6)
    for value in (0.0, 1.0):
        expected = wilson(int(10 * value), 10, 0.95)
        assert bounds(bootstrap(np.full(10, value), RESAMPLING)) == pytest.approx(bounds(expected))
    same = np.array([0.0, 1.0] * 5)  # no problem changed
    assert bounds(paired_difference(same, same, RESAMPLING)) == pytest.approx((-0.277533, 0.277533), abs=1e-6)


def test_difference_is_paired_by_problem() -> None:
    # Every problem gains exactly a quarter: unpaired, the spread of the problems would widen the interval.
    base = np.linspace(0, 0.7, 30)
    gain = paired_difference(base, base + np.where(np.arange(30) % 2, 0.2, 0.3), RESAMPLING)
    assert gain.value == pytest.approx(0.25)
    assert 0.22 < gain.low < gain.high < 0.28


def test_two_seeds_that_differ_by_as_much_on_every_problem_have_students_interval() -> None:
    # The seeds' means are 0.49 and 0.51 on each problem: standard error 0.01, one degree of freedom, whose quantile is 12.706205.
    values = np.repeat([[0.49], [0.51]], 50, axis=1)
    assert bounds(bootstrap(values, RESAMPLING)) == pytest.approx((0.5 - 0.12706205, 0.5 + 0.12706205), abs=1e-6)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_interval_over_few_seeds_that_differ_covers_the_truth(seeds: int) -> None:
    generator = np.random.default_rng(seeds)
    covered = 0
    for _ in range(300):
        values = 0.3 + generator.normal(0, 0.03, (seeds, 1)) + generator.normal(0, 0.2, (1, 200))
        estimate = bootstrap(values, Resampling(confidence=0.95, draws=300, seed=0))
        covered += estimate.low <= 0.3 <= estimate.high
    assert covered / 300 > 0.9, "the bootstrap alone: 0.81 with two seeds"


@given(per_problem)
def test_bootstrap_interval_contains_the_mean(values: Floats) -> None:
    estimate = bootstrap(values, RESAMPLING)
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.low - 1e-12 <= estimate.value <= estimate.high + 1e-12
    assert estimate.low >= -1e-12
    assert estimate.high <= 1 + 1e-12


@given(per_problem)
def test_swapping_base_and_trained_turns_the_difference_around(values: Floats) -> None:
    other = values[::-1].copy()
    assert paired_difference(values, other, RESAMPLING).value == pytest.approx(
        -paired_difference(other, values, RESAMPLING).value
    )


def test_pass_at_k_by_hand() -> None:
    # n = 4, c = 1: 1 - C(3,2)/C(4,2) = 1 - 3/6; c = 3: no two wrong ones, so certain.
    assert pass_at_k(4, np.array([0, 1, 2, 3, 4]), 2) == pytest.approx([0, 1 / 2, 5 / 6, 1, 1])
    # n = 5, c = 2, k = 3: 1 - C(3,3)/C(5,3) = 1 - 1/10
    assert pass_at_k(5, np.array([2]), 3) == pytest.approx([0.9])


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_equals_the_binomial_formula(numbers: tuple[int, int, int]) -> None:
    n, c, k = numbers
    exact = 1 - Fraction(comb(n - c, k), comb(n, k))
    assert float(pass_at_k(n, np.array([c]), k)[0]) == pytest.approx(float(exact), abs=1e-12)


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        (["8", "8", "7", None], [True, True, False, False], 1.0),
        (["8", "7", "7", None], [True, False, False, False], 0.0),
        (["8", "7", None, None], [True, False, False, False], 0.5),
        (["8", "7", "6", None], [True, False, False, False], 1 / 3),
        ([None, None, None, "8"], [False, False, False, True], 1.0),
        ([None, None], [False, False], 0.0),
        ([], [], 0.0),
    ],
)
def test_majority_of_answers(answers: list[str | None], correct: list[bool], expected: float) -> None:
    assert majority_correct(answers, correct) == pytest.approx(expected)


def test_seeds_that_share_one_sample_of_the_base_policy_add_no_certainty() -> None:
    random = np.random.default_rng(3)
    base, trained = random.random((1, 200)) < 0.4, random.random((3, 200)) < 0.6
    shared = np.repeat(base, 3, axis=0).astype(np.float64)
    resampling = Resampling(confidence=0.95, draws=4000, seed=0)
    alone, of_three = (bootstrap(values, resampling) for values in (shared[:1], shared))
    assert of_three.value == alone.value
    assert (of_three.high - of_three.low) == pytest.approx(alone.high - alone.low, rel=0.05)
    gain = paired_difference(shared, trained.astype(np.float64), resampling)
    assert gain.high - gain.low > 0.7 * (alone.high - alone.low), (
        "the base policy's chance is not divided by its copies"
    )


def test_interval_over_three_seeds_is_students() -> None:
    # mean 2, standard deviation 1, t(0.975, 2) = 4.302653: half-width 4.302653 / sqrt(3)
    mean, low, high = mean_over_seeds(np.array([[1.0], [2.0], [3.0]]), 0.95)
    assert (float(mean[0]), float(low[0]), float(high[0])) == pytest.approx((2.0, -0.484138, 4.484138), abs=1e-6)


def test_seeds_are_drawn_one_by_one_so_that_ten_are_narrower_than_their_range() -> None:
    seeds = np.repeat(np.linspace(0.0, 0.9, 10)[:, None], 40, axis=1)
    seeds[:, ::2] += 0.1
    found = bootstrap(seeds, Resampling(confidence=0.95, draws=500, seed=0))
    assert 0.3 < found.high - found.low < 0.5, "2.26 standard errors of 0.096 to each side"
