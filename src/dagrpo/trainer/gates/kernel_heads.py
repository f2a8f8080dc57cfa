"""Whether a GPU attends to a model's packed rows by its kernel for 16 bits, by the sizes of its heads."""

from typing import Any

import torch
from transformers.integrations.heterogeneity import AmbiguousGlobalPerLayerAttributeError

from dagrpo.trainer.packed_attention import is_for_kernel


def is_packed_by_kernel(config: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """By the configuration of a language model that computes in `dtype`. Attention itself decides by the same rule."""
    try:
        sizes = head_sizes(config)
    except AmbiguousGlobalPerLayerAttributeError:  # layers have heads of different sizes (Gemma 4)
        return False
    query, value = (torch.empty(0, size, dtype=dtype, device=device) for size in sizes)
    return is_for_kernel(query, value)


def head_sizes(config: Any) -> tuple[int, int]:
    """Numbers in a head of queries and keys, and in one of values: latent attention (DeepSeek) has two sizes. 0: there are no heads."""
    heads = getattr(config, "num_attention_heads", None) or 0
    size = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    without_positions = getattr(config, "qk_nope_head_dim", None)
    of_queries = without_positions + config.qk_rope_head_dim if without_positions else size
    return of_queries, getattr(config, "v_head_dim", None) or size
