"""Metrics `off_policy_*`: distance between the sampling engine and the trainer.

They are those of verl (`rollout_corr/*`), of the weights before a correction truncates or masks them, so that runs with different
corrections can be compared. Corrections have their own metrics, and so has the policy's change by updates.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagrpo.algorithms.tokens import LOG_RATIO_LIMIT

BAND = (0.5, 2.0)  # importance weights that are not called outside

Values = NDArray[np.float64]


def off_policy_metrics(
    rollout_logprobs: ArrayLike, trainer_logprobs: ArrayLike, lengths: Sequence[int]
) -> dict[str, float]:
    """Return the metrics of one step, before its first update.

    rollout_logprobs, trainer_logprobs: [tokens], the engine's and the trainer's. lengths: [trajectories], the tokens of
    each; one without tokens is left out. Means over trajectories are named so, all others are over tokens.
    """
    rollout, trainer = (np.asarray(values, dtype=np.float64) for values in (rollout_logprobs, trainer_logprobs))
    counts = np.array([length for length in lengths if length])
    assert len(rollout) == len(trainer) == counts.sum() > 0
    perplexities = _perplexities(rollout, trainer, counts)
    correlation = _correlation(np.exp(rollout), np.exp(trainer))
    log_ratios = trainer - rollout
    del rollout, trainer  # one of the largest arrays of a step each
    weights = _ratios(log_ratios)
    is_inside = (weights >= BAND[0]) & (weights <= BAND[1])  # which what is not a number is not
    return {
        "policy/off_policy_kl": float(-log_ratios.mean()),
        "policy/off_policy_k3_kl": float((weights - log_ratios - 1).mean()),
        **perplexities,
        "policy/off_policy_chi2_token": float((weights**2).mean() - 1),
        "policy/off_policy_chi2_sequence": float((_ratios(_sums(log_ratios, counts)) ** 2).mean() - 1),
        "policy/off_policy_weight_mean": float(weights.mean()),
        "policy/off_policy_weight_min": float(weights.min()),
        "policy/off_policy_weight_max": float(weights.max()),
        "policy/off_policy_weight_std": float(weights.std()),
        "policy/off_policy_effective_sample_size": effective_sample_size(weights),
        "policy/off_policy_outside_fraction": float((~is_inside).mean()),
        "policy/off_policy_probability_correlation": correlation,
    }


def effective_sample_size(weights: Values) -> float:
    """Return (sum w)^2 / (n sum w^2), the effective sample size as a share of the tokens; 0 if all weights are 0."""
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / (len(weights) * squares) if squares else 0.0


def _perplexities(rollout: Values, trainer: Values, counts: NDArray[np.int64]) -> dict[str, float]:
    """Return the perplexities of both sides and their ratio: means over trajectories of each trajectory's value."""
    of_rollout, of_trainer = (-_sums(values, counts) / counts for values in (rollout, trainer))
    return {
        "policy/off_policy_trainer_perplexity": float(_ratios(of_trainer).mean()),
        "policy/off_policy_rollout_perplexity": float(_ratios(of_rollout).mean()),
        "policy/off_policy_perplexity_ratio": float(_ratios(of_trainer - of_rollout).mean()),
    }


def _ratios(logarithms: Values) -> Values:
    ratios: Values = np.clip(logarithms, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return np.exp(ratios, out=ratios)


def _sums(values: Values, counts: NDArray[np.int64]) -> Values:
    """Return the sum of each trajectory. [tokens] -> [trajectories]"""
    sums: Values = np.add.reduceat(values, counts.cumsum() - counts)
    return sums


def _correlation(a: Values, b: Values) -> float:
    """Return Pearson's correlation, 0 if one of both does not vary. Overwrites both, which may be the largest arrays of a step."""
    a -= a.mean()
    b -= b.mean()
    product = float((a * b).sum())
    scale = float(np.sqrt(np.square(a, out=a).sum() * np.square(b, out=b).sum()))
    return product / scale if scale else 0.0
