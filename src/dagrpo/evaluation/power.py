"""Seeds and problems that it takes to show a difference.

The sample size follows from the variances between seeds and between problems and from the quantiles of the normal distribution, as for
evaluations of language models in Miller 2024, arXiv:2411.00640, section 5.
"""

from math import sqrt
from statistics import NormalDist

import numpy as np

from dagrpo.evaluation.statistics import (
    Floats,
    Variance,
    mean_squares,
    standard_error,
    student_half_width,
    variance_of,
    wilson,
)

POWER = 0.8  # the chance with which a difference is to be shown: Cohen 1988


def detectable(variance: Variance, seeds: int, problems: int, confidence: float, power: float = POWER) -> float:
    """Return the least difference, as a share, that a comparison of `seeds` and `problems` shows with probability `power`.

    Shown: its interval excludes 0. The difference has to exceed half the interval's width by the standard error times the quantile of
    `power`. The interval is the report's: by the bootstrap (`_bootstrap_variance`), or Student's if that is wider. Never below what
    a problem without any difference leaves possible (Wilson).
    """
    error = standard_error(variance, seeds, problems)
    if error == 0:
        return wilson(0, problems, confidence).high
    tail = (1 + confidence) / 2
    by_bootstrap = NormalDist().inv_cdf(tail) * sqrt(_bootstrap_variance(variance, seeds, problems))
    by_student = student_half_width(variance, seeds, problems, confidence)
    least = max(by_bootstrap, by_student) + NormalDist().inv_cdf(power) * error
    return max(least, wilson(0, problems, confidence).high)


def _bootstrap_variance(variance: Variance, seeds: int, problems: int) -> float:
    """Return the expected variance of a mean over resampled seeds and resampled problems (Owen 2007, section 3).

    With the mean squares A of seeds, B of problems and E of the rest it is (P (S-1) A + S (P-1) B + (S-1) (P-1) E) / (S P)^2: of the rest
    up to three times as much as the mean has, of the seeds (S-1)/S.
    """
    of_seeds, of_problems, rest = mean_squares(variance, seeds, problems)
    terms = (
        problems * (seeds - 1) * of_seeds,
        seeds * (problems - 1) * of_problems,
        (seeds - 1) * (problems - 1) * rest,
    )
    return sum(terms) / (seeds * problems) ** 2


def detectable_of(differences: Floats, confidence: float) -> float:
    """Return the least difference that a comparison like the one with these differences [seeds, problems] shows; 1 of one problem."""
    seeds, problems = np.atleast_2d(differences).shape
    if problems < 2:
        return 1.0
    return detectable(variance_of(np.atleast_2d(differences)), seeds, problems, confidence)
