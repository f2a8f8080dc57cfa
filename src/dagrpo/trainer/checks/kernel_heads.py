"""Head sizes that the GPU kernel for 16-bit packed rows supports."""

from typing import Any

import torch
from transformers.integrations.heterogeneity import AmbiguousGlobalPerLayerAttributeError

from dagrpo.trainer.model.packed_attention import is_for_kernel


def is_packed_by_kernel(config: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if the kernel for 16 bits computes packed rows of this language model in `dtype`. Attention decides by the same rule."""
    try:
        sizes = head_sizes(config)
    except AmbiguousGlobalPerLayerAttributeError:  # layers have heads of different sizes (Gemma 4)
        return False
    query, value = (torch.empty(0, size, dtype=dtype, device=device) for size in sizes)
    return is_for_kernel(query, value)


def head_sizes(config: Any) -> tuple[int, int]:
    """Return the sizes of a query/key head and of a value head: latent attention (DeepSeek) has two sizes. 0: there are no heads."""
    heads = getattr(config, "num_attention_heads", None) or 0
    size = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    without_positions = getattr(config, "qk_nope_head_dim", None)
    of_queries = without_positions + config.qk_rope_head_dim if without_positions else size
    return of_queries, getattr(config, "v_head_dim", None) or size
