"""Detection of mixtures of experts from a model's configuration.

Imports no torch.
"""

from typing import Any

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # the number's key in config.json, by model family


def number_of_experts(config: Any) -> int:
    """Return the experts of each layer, from the configuration of a language model; 0 for a dense model."""
    return next((int(getattr(config, name)) for name in EXPERTS if getattr(config, name, None)), 0)


def is_mixture_of_experts(config: Any) -> bool:
    """Return True if each token is routed to some of several experts."""
    return number_of_experts(config) > 0
