"""Seeds and problems that it takes to show a difference.

The difference between two policies with seed s on problem p is their mean difference, plus an effect of the seed, one of the problem,
and the rest: two crossed random factors, of which every pair was met once. Their variances follow from the mean squares (Cornfield
and Tukey 1956, Annals of Mathematical Statistics 27), and the sample size from the quantiles of the normal distribution, as for
evaluations of language models in Miller 2024, arXiv:2411.00640, section 5.
"""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np
from scipy.special import stdtrit  # type: ignore[import-untyped]

from dagrpo.evaluation.statistics import Floats, wilson

POWER = 0.8  # the chance with which a difference is to be shown: Cohen 1988
MOST_PROBLEMS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Variance:
    """Variances of a paired difference, whose values are from -1 to 1."""

    seeds: float  # between seeds; 0 if `is_of_one_seed`, which says nothing of others
    problems: float  # between problems; of one seed with the rest
    rest: float
    is_of_one_seed: bool = False


def variance_of(differences: Floats) -> Variance:
    """Estimate the variances from paired differences [seeds, problems], of two problems or more; a negative estimate is 0."""
    seeds, problems = differences.shape
    if seeds == 1:
        return Variance(seeds=0.0, problems=float(differences.var(ddof=1)), rest=0.0, is_of_one_seed=True)
    of_seeds, of_problems = differences.mean(axis=1, keepdims=True), differences.mean(axis=0, keepdims=True)
    residuals = differences - of_seeds - of_problems + differences.mean()
    rest = float((residuals**2).sum()) / ((seeds - 1) * (problems - 1))
    return Variance(
        seeds=max(0.0, float(of_seeds.var(ddof=1)) - rest / problems),
        problems=max(0.0, float(of_problems.var(ddof=1)) - rest / seeds),
        rest=rest,
    )


def detectable(variance: Variance, seeds: int, problems: int, confidence: float, power: float = POWER) -> float:
    """Return the least difference, as a share, that a comparison of `seeds` and `problems` shows with probability `power`.

    Shown: its interval excludes 0. The difference has to exceed half the interval's width by the standard error times the quantile of
    `power`. The interval is the report's (`_bootstrap_variance`), or Student's with Satterthwaite's degrees of freedom (1946) if
    that is wider, as with few seeds. Never below what a problem without any difference leaves possible (Wilson).
    """
    error = sqrt(variance.seeds / seeds + variance.problems / problems + variance.rest / (seeds * problems))
    if error == 0:
        return wilson(0, problems, confidence).high
    tail = (1 + confidence) / 2
    by_bootstrap = NormalDist().inv_cdf(tail) * sqrt(_bootstrap_variance(variance, seeds, problems))
    by_student = float(stdtrit(_degrees_of_freedom(variance, seeds, problems), tail)) * error
    least = max(by_bootstrap, by_student) + NormalDist().inv_cdf(power) * error
    return max(least, wilson(0, problems, confidence).high)


def _mean_squares(variance: Variance, seeds: int, problems: int) -> tuple[float, float, float]:
    """Return the expected mean squares of seeds, problems and the rest."""
    rest = variance.rest
    return rest + problems * variance.seeds, rest + seeds * variance.problems, rest


def _bootstrap_variance(variance: Variance, seeds: int, problems: int) -> float:
    """Return the expected variance of a mean over resampled seeds and resampled problems (Owen 2007, section 3).

    With the mean squares A of seeds, B of problems and E of the rest it is (P (S-1) A + S (P-1) B + (S-1) (P-1) E) / (S P)^2: of the rest
    up to three times as much as the mean has, of the seeds (S-1)/S.
    """
    of_seeds, of_problems, rest = _mean_squares(variance, seeds, problems)
    terms = (
        problems * (seeds - 1) * of_seeds,
        seeds * (problems - 1) * of_problems,
        (seeds - 1) * (problems - 1) * rest,
    )
    return sum(terms) / (seeds * problems) ** 2


def _degrees_of_freedom(variance: Variance, seeds: int, problems: int) -> float:
    """Return Satterthwaite's degrees of freedom of the mean's variance, (A + B - E) / (S P)."""
    of_seeds, of_problems, rest = _mean_squares(variance, seeds, problems)
    if seeds == 1:
        return problems - 1
    parts = of_seeds**2 / (seeds - 1) + of_problems**2 / (problems - 1) + rest**2 / ((seeds - 1) * (problems - 1))
    return (of_seeds + of_problems - rest) ** 2 / parts


def problems_needed(
    variance: Variance, difference: float, seeds: int, confidence: float, power: float = POWER
) -> int | None:
    """Return the least number of problems with which `seeds` show a difference; None if no number of problems does."""

    def is_enough(problems: int) -> bool:
        return detectable(variance, seeds, problems, confidence, power) <= difference

    # From below: with few seeds many problems show less again, since Student's interval then has their few degrees of freedom.
    high = 2
    while not is_enough(high):
        high *= 2
        if high > MOST_PROBLEMS:
            return None
    low = high // 2  # not enough, or too few for a variance
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def detectable_of(differences: Floats, confidence: float) -> float:
    """Return the least difference that a comparison like the one with these differences [seeds, problems] shows; 1 of one problem."""
    seeds, problems = np.atleast_2d(differences).shape
    if problems < 2:
        return 1.0
    return detectable(variance_of(np.atleast_2d(differences)), seeds, problems, confidence)
