"""Attention of a vision tower within each picture.

SGLang puts the patches of all pictures of a batch in one row, and keeps them apart by a mask of all against all: so a batch takes
time by the square of its patches, and memory for as many masks as it has seen. The result here is the same but for rounding.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


def attend_within_pictures(
    original: Callable[..., Tensor],
    layer: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bsz: int,
    cu_seqlens: Tensor | None = None,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """Compute attention in place of VisionSdpaAttention.forward. q, k, v and the result: [patches, heads, width].

    cu_seqlens: [parts + 1], the bounds of each picture, or of each window of one.
    """
    in_one_row = layer.flatten_batch and cu_seqlens is not None and attention_mask is None
    if not in_one_row or layer.softmax_in_single_precision:
        return original(layer, q, k, v, bsz, cu_seqlens=cu_seqlens, attention_mask=attention_mask, **kwargs)
    output = torch.empty_like(q)
    assert cu_seqlens is not None
    for start, end, parts in _runs(cu_seqlens.diff().tolist()):
        query, key, value = (each[start:end].reshape(parts, -1, *each.shape[1:]).transpose(1, 2) for each in (q, k, v))
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=layer.scale)
        output[start:end] = attended.transpose(1, 2).flatten(0, 1)
    return output


def _runs(lengths: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of neighbours of one length: begin, end and count."""
    start = 0
    for length, run in itertools.groupby(length for length in lengths if length):
        parts = len(list(run))
        yield start, start + parts * length, parts
        start += parts * length
