"""Variances between seeds and problems, and Student's interval from them.

The value of seed s on problem p is the mean, plus an effect of the seed, one of the problem, and the rest: two crossed random factors,
of which every pair was met once. Their variances follow from the mean squares (Cornfield and Tukey 1956, Annals of Mathematical
Statistics 27).
"""

from dataclasses import dataclass
from math import sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy  # type: ignore[import-untyped]

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variance:
    """Variances of values, such as paired differences."""

    seeds: float  # between seeds; 0 if `is_of_one_seed`, which says nothing of others
    problems: float  # between problems; of one seed with the rest
    rest: float
    is_of_one_seed: bool = False


def variance_of(values: Floats) -> Variance:
    """Estimate the variances from values [seeds, problems], of two problems or more; a negative estimate is 0."""
    seeds, problems = values.shape
    if seeds == 1:
        return Variance(seeds=0.0, problems=float(values.var(ddof=1)), rest=0.0, is_of_one_seed=True)
    of_seeds, of_problems = values.mean(axis=1, keepdims=True), values.mean(axis=0, keepdims=True)
    residuals = values - of_seeds - of_problems + values.mean()
    rest = float((residuals**2).sum()) / ((seeds - 1) * (problems - 1))
    return Variance(
        seeds=max(0.0, float(of_seeds.var(ddof=1)) - rest / problems),
        problems=max(0.0, float(of_problems.var(ddof=1)) - rest / seeds),
        rest=rest,
    )


def standard_error(variance: Variance, seeds: int, problems: int) -> float:
    """Return the standard error of the mean over `seeds` and `problems`."""
    return sqrt(variance.seeds / seeds + variance.problems / problems + variance.rest / (seeds * problems))


def student_half_width(variance: Variance, seeds: int, problems: int, confidence: float) -> float:
    """Return half the width of Student's interval of the mean, with Satterthwaite's degrees of freedom (1946)."""
    error = standard_error(variance, seeds, problems)
    if error == 0:
        return 0.0
    return float(scipy.special.stdtrit(_degrees_of_freedom(variance, seeds, problems), (1 + confidence) / 2)) * error


def mean_squares(variance: Variance, seeds: int, problems: int) -> tuple[float, float, float]:
    """Return the expected mean squares of seeds, problems and the rest."""
    rest = variance.rest
    return rest + problems * variance.seeds, rest + seeds * variance.problems, rest


def _degrees_of_freedom(variance: Variance, seeds: int, problems: int) -> float:
    """Return Satterthwaite's degrees of freedom of the mean's variance, (A + B - E) / (S P)."""
    of_seeds, of_problems, rest = mean_squares(variance, seeds, problems)
    if seeds == 1:
        return problems - 1
    parts = of_seeds**2 / (seeds - 1) + of_problems**2 / (problems - 1) + rest**2 / ((seeds - 1) * (problems - 1))
    return (of_seeds + of_problems - rest) ** 2 / parts
