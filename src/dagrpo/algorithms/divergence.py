"""The k3 estimator of KL(policy || reference) (Schulman 2020, "Approximating KL divergence"), per token."""

import torch

LOG_RATIO_LIMIT = 20.0
VALUE_LIMIT = 10.0


def k3(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """exp(d) - d - 1 with d = reference - policy logprob of the sampled token; unbiased, never negative. [tokens]"""
    d = (reference_logprobs - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (d.exp() - d - 1).clamp(max=VALUE_LIMIT)
