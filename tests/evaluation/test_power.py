"""Variances, sample sizes and the least difference that a comparison shows, against numbers by hand and against simulations."""

import numpy as np
import pytest

from dagrpo.evaluation.power import detectable, detectable_of
from dagrpo.evaluation.statistics import Floats, Resampling, Variance, paired_difference, variance_of
from dagrpo_compare.power import problems_needed

CASES = {
    "one seed": (Variance(seeds=0.0, problems=0.3, rest=0.0), 1, 150),
    "problems differ, seeds hardly": (Variance(seeds=0.0, problems=0.2, rest=0.02), 4, 150),
    "seeds differ": (Variance(seeds=0.004, problems=0.05, rest=0.02), 30, 60),
}


def simulated(variance: Variance, seeds: int, problems: int, mean: float, generator: np.random.Generator) -> Floats:
    of_seeds = generator.normal(0, variance.seeds**0.5, (seeds, 1))
    of_problems = generator.normal(0, variance.problems**0.5, (1, problems))
    return mean + of_seeds + of_problems + generator.normal(0, variance.rest**0.5, (seeds, problems))


def test_variances_of_two_seeds_and_two_problems() -> None:
    # Means of seeds 2 and 0, of problems 2 and 0, and nothing is left: 2 between seeds, 2 between problems.
    assert variance_of(np.array([[3.0, 1.0], [1.0, -1.0]])) == Variance(seeds=2.0, problems=2.0, rest=0.0)
    # Means of either 1/2 and 0, whose variance is 1/8; residuals of +-1/4, so 4/16 on one degree: 1/8 - 1/4/2 = 0.
    assert variance_of(np.array([[1.0, 0.0], [0.0, 0.0]])) == Variance(seeds=0.0, problems=0.0, rest=0.25)


def test_least_difference_of_a_hundred_problems_with_one_seed() -> None:
    # Standard error sqrt(1/4 / 100) = 0.05; Student's quantile at 99 degrees 1.984217, the normal one of 0.8 0.841621.
    variance = Variance(seeds=0.0, problems=0.25, rest=0.0)
    assert detectable(variance, 1, 100, 0.95) == pytest.approx(0.05 * (1.984217 + 0.841621), abs=1e-6)


def test_least_difference_of_two_seeds_that_differ_is_large() -> None:
    # Standard error sqrt(0.0002 / 2) = 0.01 and one degree of freedom, whose quantile is 12.706205.
    variance = Variance(seeds=0.0002, problems=0.0, rest=0.0)
    assert detectable(variance, 2, 1000, 0.95) == pytest.approx(0.01 * (12.706205 + 0.841621), abs=1e-6)


def test_least_difference_by_the_bootstrap_where_the_rest_is_all() -> None:
    # A = B = E = 0.04, S = 10, P = 1000: 0.04 (9000 + 9990 + 8991) / 10000^2 = 1.11924e-5; the mean's own is 0.04 / 10000.
    variance = Variance(seeds=0.0, problems=0.0, rest=0.04)
    least = 1.959964 * 1.11924e-5**0.5 + 0.841621 * 0.002
    assert detectable(variance, 10, 1000, 0.95) == pytest.approx(least, abs=1e-6)


def test_a_comparison_without_any_difference_cannot_show_a_small_one() -> None:
    # Wilson's upper end for 0 of 10: 3.841459 / 13.841459.
    assert detectable_of(np.zeros((1, 10)), 0.95) == pytest.approx(0.277533, abs=1e-6)
    assert detectable_of(np.zeros((1, 1)), 0.95) == 1.0


def test_problems_needed_are_the_least_that_show_the_difference() -> None:
    variance = Variance(seeds=0.0001, problems=0.25, rest=0.05)
    needed = problems_needed(variance, 0.05, 4, 0.95)
    assert needed is not None
    assert detectable(variance, 4, needed, 0.95) <= 0.05 < detectable(variance, 4, needed - 1, 0.95)
    assert problems_needed(variance, 0.005, 4, 0.95) is None, "the seeds alone vary by more"


@pytest.mark.parametrize("case", CASES)
def test_the_reports_interval_shows_the_least_difference_four_times_of_five(case: str) -> None:
    variance, seeds, problems = CASES[case]
    least = detectable(variance, seeds, problems, 0.95)
    generator = np.random.default_rng(1)
    resampling = Resampling(confidence=0.95, draws=300, seed=0)
    shown = 0
    for _ in range(400):
        differences = simulated(variance, seeds, problems, least, generator)
        shown += paired_difference(np.zeros_like(differences), differences, resampling).low > 0
    assert shown / 400 == pytest.approx(0.8, abs=0.07)
