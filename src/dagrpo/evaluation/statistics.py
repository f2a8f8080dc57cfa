"""Estimators and intervals: arrays of per-problem numbers in, estimates out.

Independent of completions, tasks and files. No hypothesis tests and no p-values: an interval says more.

Of variances, the value of seed s on problem p is the mean, plus an effect of the seed, one of the problem, and the rest: two crossed
random factors, of which every pair was met once. They follow from the mean squares (Cornfield and Tukey 1956, Annals of Mathematical
Statistics 27).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
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


Integers: TypeAlias = npt.NDArray[np.int64]

DRAWN_AT_ONCE = 1 << 22  # numbers gathered per chunk of bootstrap draws: bounds memory, changes no result


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its confidence interval."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """Parameters of intervals. `draws` and `seed` matter to the bootstrap only."""

    confidence: float  # 0.5 < confidence < 1
    draws: int
    seed: int


def wilson(successes: int, trials: int, confidence: float) -> Estimate:
    """Return the score interval of a proportion (Wilson, JASA 1927); right also at 0 and 1, where the normal one has no width."""
    assert 0 <= successes <= trials > 0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / trials
    centre = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    low = 0.0 if successes == 0 else centre - half  # exactly, where rounding would miss it
    high = 1.0 if successes == trials else centre + half
    return Estimate(value=share, low=low, high=high)


def bootstrap(values: Floats, resampling: Resampling, bounds: tuple[float, float] = (0.0, 1.0)) -> Estimate:
    """Return the mean with its percentile bootstrap interval (Efron 1979).

    `values` is [problems], or [seeds, problems] when several runs met the same problems: seeds and problems are then
    both resampled, independently (Owen 2007, the bootstrap of crossed factors), and an end moves out to that of Student's
    interval if this is wider: a bootstrap of few seeds is too narrow. `bounds` are the least and the greatest value one
    problem can have.
    """
    matrix = np.atleast_2d(values)
    assert matrix.size
    if np.all(matrix == matrix.flat[0]):
        return _without_variation(float(matrix.flat[0]), matrix.shape[1], resampling.confidence, bounds)
    tail = (1 - resampling.confidence) / 2
    low, high = np.quantile(_resampled_means(matrix, resampling), [tail, 1 - tail])
    mean, half = float(matrix.mean()), _half_width_of_seeds(matrix, resampling.confidence)
    return Estimate(
        value=mean, low=min(float(low), max(mean - half, bounds[0])), high=max(float(high), min(mean + half, bounds[1]))
    )


def _half_width_of_seeds(matrix: Floats, confidence: float) -> float:
    """Return half the width of Student's interval over several seeds; 0 for one seed or one problem."""
    seeds, problems = matrix.shape
    return student_half_width(variance_of(matrix), seeds, problems, confidence) if min(seeds, problems) > 1 else 0.0


def _resampled_means(matrix: Floats, resampling: Resampling) -> Floats:
    seeds, problems = matrix.shape
    generator = np.random.Generator(np.random.PCG64(resampling.seed))
    chunk = max(1, DRAWN_AT_ONCE // problems)
    means = np.empty(resampling.draws)
    for start in range(0, resampling.draws, chunk):
        count = min(chunk, resampling.draws - start)
        weights = np.eye(seeds)[generator.integers(seeds, size=(count, seeds))].mean(axis=1)  # [count, seeds]
        drawn_problems = generator.integers(problems, size=(count, problems))
        means[start : start + count] = np.take_along_axis(weights @ matrix, drawn_problems, axis=1).mean(axis=1)
    return means


def _without_variation(value: float, problems: int, confidence: float, bounds: tuple[float, float]) -> Estimate:
    """Return the estimate where every problem has the same value: resampling would claim certainty.

    0 of `problems` differ; Wilson's upper bound on the share that could, each moved to the end of its range, bounds the
    mean. For a proportion of 0 or 1 this is exactly the Wilson interval.
    """
    share = wilson(0, problems, confidence).high
    return Estimate(value=value, low=value - share * (value - bounds[0]), high=value + share * (bounds[1] - value))


def paired_difference(base: Floats, trained: Floats, resampling: Resampling) -> Estimate:
    """Return trained minus base, problem by problem ([problems] or [seeds, problems]), with its bootstrap interval.

    Pairing removes the variance that both share because some problems are harder than others.
    """
    assert base.shape == trained.shape
    return bootstrap(trained - base, resampling, bounds=(-1.0, 1.0))


def pass_at_k(samples: int, correct: Integers, k: int) -> Floats:
    """Return the probability that at least one of k samples is right, per problem: 1 - C(n-c, k) / C(n, k).

    `correct` [problems] counts the right ones among n = `samples`. Unbiased (Chen et al. 2021, arXiv:2107.03374, equation 1), as the
    product over i = n-c+1 .. n of (1 - k/i), in which nothing overflows.
    """
    assert 1 <= k <= samples
    factors = np.maximum(1 - k / np.arange(samples, 0, -1), 0.0)
    all_wrong = np.concatenate([[1.0], np.cumprod(factors)])  # [c]: none of k is right when c of n are
    return 1 - all_wrong[correct]


def majority_correct(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """Return the probability that the most frequent answer to one problem is right (self-consistency, Wang et al. 2023).

    A missing answer does not vote. Ties are broken at random, so the expected value is returned: the share of the tied
    answers that is right. 0 without votes.
    """
    votes: dict[str, int] = {}
    verdict: dict[str, bool] = {}
    for answer, right in zip(answers, correct, strict=True):
        if answer is not None:
            votes[answer] = votes.get(answer, 0) + 1
            verdict[answer] = right
    winners = [answer for answer, count in votes.items() if count == max(votes.values())]
    return sum(verdict[winner] for winner in winners) / len(winners) if winners else 0.0


def mean_over_seeds(values: Floats, confidence: float) -> tuple[Floats, Floats, Floats]:
    """Return mean, low and high per column of `values` [seeds, steps]: Student's t interval over two seeds or more."""
    seeds = values.shape[0]
    assert seeds > 1
    mean = values.mean(axis=0)
    half = scipy.special.stdtrit(seeds - 1, (1 + confidence) / 2) * values.std(axis=0, ddof=1) / np.sqrt(seeds)
    return mean, mean - half, mean + half
