"""Whether a model is a mixture of experts, as its configuration says. Imports no torch."""

from typing import Any

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # what families call their number in config.json


def number_of_experts(config: Any) -> int:
    """Of each layer, by the configuration of a language model; 0: it is no mixture of experts."""
    return next((int(getattr(config, name)) for name in EXPERTS if getattr(config, name, None)), 0)


def is_mixture_of_experts(config: Any) -> bool:
    """Whether each token is sent to some of several experts."""
    return number_of_experts(config) > 0
