"""Families call the number of their experts by different names."""

from typing import Any

import pytest
from transformers import DeepseekV3Config, MixtralConfig, Qwen2Config, Qwen3MoeConfig

from dagrpo.checkpoints.experts import is_mixture_of_experts, number_of_experts


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        (Qwen2Config(), 0),
        (Qwen3MoeConfig(num_experts=4), 4),
        (MixtralConfig(num_local_experts=8), 8),
        (DeepseekV3Config(n_routed_experts=16), 16),
    ],
)
def test_experts_are_counted_whatever_a_family_calls_them(config: Any, experts: int) -> None:
    assert number_of_experts(config) == experts
    assert is_mixture_of_experts(config) is (experts > 0)
