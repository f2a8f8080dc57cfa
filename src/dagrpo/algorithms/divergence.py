"""Estimators of KL(policy || reference) from the sampled token's logprobs (Schulman 2020, "Approximating KL divergence")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dagrpo.algorithms.tokens import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    import torch

Estimator = Literal["k1", "abs", "k2", "k3", "k1+", "abs+", "k3+"]
VALUE_LIMIT = 10.0


def divergence(logprobs: torch.Tensor, reference_logprobs: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """Return the estimate per token, with d = policy - reference logprob. [tokens]

    k1 is d, abs |d|, k2 d^2 / 2, k3 exp(-d) - 1 + d, cut at 10. If the policy itself sampled the token, the values of k1 and
    k3 are unbiased, and k3 is never negative. Then the gradient of k2 is, on average, that of the divergence; that of k1 is 0;
    that of abs belongs to the sum of |policy - reference|; that of k3 to the reverse divergence, KL(reference || policy). An
    estimator with + has its own value and the gradient of k2 (straight-through).
    """
    d = (logprobs - reference_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if estimator.endswith("+"):
        squared = d**2 / 2
        return _value(d, estimator.removesuffix("+")).detach() + squared - squared.detach()
    return _value(d, estimator)


def _value(d: torch.Tensor, estimator: str) -> torch.Tensor:
    match estimator:
        case "k1":
            return d
        case "abs":
            return d.abs()
        case "k2":
            return d**2 / 2
    return ((-d).exp() - 1 + d).clamp(max=VALUE_LIMIT)
