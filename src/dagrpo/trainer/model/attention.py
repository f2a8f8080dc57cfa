"""Attention within the segments of packed rows; float32 on CPUs.

A mask over a whole row is never built. On a GPU in 16 bits one flash attention kernel computes sequences of any length
(torch.nn.attention.varlen); elsewhere scaled dot-product attention does, all sequences of one length together. torch's CPU kernels for
16 bits take about twice as long, forward and backward, and round more. GPU kernels need none of this: they accumulate in float32.
"""

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.heterogeneity import AmbiguousGlobalPerLayerAttributeError
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.trainer.batches.packed_rows import Segments

IN_FLOAT32 = "dagrpo_float32"


def attend_in_float32(model: PreTrainedModel) -> None:
    """Cast queries, keys and values to float32 before attention, and its result back, from now on."""
    AttentionInterface.register(IN_FLOAT32, attended_in_float32)
    AttentionMaskInterface.register(IN_FLOAT32, sdpa_mask)
    model.set_attn_implementation(IN_FLOAT32)


def attended_in_float32(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Compute attention as transformers' attention functions do: query, key, value are [sequences, heads, tokens, head size].

    Returns [sequences, tokens, heads, head size] in the query's type.
    """
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.float()
    output, _ = sdpa_attention_forward(module, query.float(), key.float(), value.float(), attention_mask, **options)
    return output.to(query.dtype), None


PACKED = "dagrpo_packed"
AMPERE = (8, 0)  # the first generation of GPUs that flash attention computes on
LARGEST_HEAD = 256  # most numbers in a head that its kernel takes
MULTIPLE = 8  # that the size of a head has to be a multiple of


def attend_by_segment(model: PreTrainedModel) -> None:
    """Let a model attend within each segment from now on if it is given `segments`, and as before if not."""
    AttentionInterface.register(PACKED, attended)
    AttentionMaskInterface.register(PACKED, mask_or_window)
    model.set_attn_implementation(PACKED)


def mask_or_window(
    *inputs: Any, attention_mask: Tensor | None = None, local_size: int | None = None, **options: Any
) -> Tensor | None:
    """Return the window of a packed row, which has no padding and needs no mask. Called as transformers' mask functions are.

    The layers are given a tensor [tokens that each token attends to, 0]; None: all. A compiled layer reads a shape
    without leaving its graph, unlike a value. Some families pass their window to the mask function alone (Qwen2-MoE, Phi-MoE).
    """
    if attention_mask is not None:
        mask: Tensor | None = sdpa_mask(*inputs, attention_mask=attention_mask, local_size=local_size, **options)
        return mask
    return None if local_size is None else torch.empty(local_size, 0)


def attended(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Segments | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers' functions do: query, key, value [sequences, heads, tokens, head size]; of a packed row, [1, ...].

    attention_mask: the value of `mask_or_window`. Returns [sequences, tokens, heads, head size] in the query's type.
    """
    if segments is None:
        own = attended_in_float32 if _is_narrow_on_cpu(query) else sdpa_attention_forward
        output, _ = own(module, query, key, value, attention_mask, **options)
        return output, None
    of_row = [each[0].transpose(0, 1) for each in (query, key, value)]
    if _is_narrow_on_cpu(query):
        of_row = [each.float() for each in of_row]
    if segments.seen is not None:
        of_row[1:] = [each.index_select(0, segments.seen) for each in of_row[1:]]
    scaling, window = options.get("scaling"), None if attention_mask is None else attention_mask.shape[0]
    if is_for_kernel(query, value):
        return _by_kernel(of_row, segments, scaling, window)[None], None
    return _by_length(module, of_row, segments, scaling, window)[None].to(query.dtype), None


def _by_kernel(of_row: list[Tensor], segments: Segments, scaling: float | None, window: int | None) -> Tensor:
    """Attend by a GPU kernel. Query: [tokens, heads, head size]; key and value of the tokens that segments see.

    `window`: how many tokens each attends to, itself included. The last query of a segment is at its last key. The lengths of
    `segments` are not read: a compiled block would be compiled again for each batch of other lengths.
    """
    query, key, value = of_row
    before = -1 if window is None else window - 1
    output = varlen_attn(
        query,
        key,
        value,
        segments.ends,
        segments.seen_ends,
        segments.longest,
        segments.longest_seen,
        scale=scaling,
        window_size=(before, 0),
        enable_gqa=True,
    )
    return cast(Tensor, output)


def _by_length(
    module: nn.Module, of_row: list[Tensor], segments: Segments, scaling: float | None, window: int | None
) -> Tensor:
    """Attend by scaled dot-product attention; neighbours of one length are computed side by side. Shapes as in `_by_kernel`.

    Where a prompt is no longer than its continuation, its queries are computed once more for each sequence, and their results discarded.
    That is less work than a mask, with which torch computes every query against every key and keeps a copy for each layer.
    """
    query, key, value = of_row
    groups = segments.groups
    own, seen = [group.length * group.number for group in groups], [group.seen * group.number for group in groups]
    places = [None] * len(groups) if segments.seen is None else torch.split(segments.seen, seen)
    parts = zip(torch.split(query, own), torch.split(key, seen), torch.split(value, seen), strict=True)
    outputs = []
    for group, its_places, (queries, keys, values) in zip(groups, places, parts, strict=True):
        narrow = window is not None and window < group.seen
        again = not narrow and 0 < group.context <= group.length
        if again:
            assert its_places is not None
            queries = query.index_select(0, its_places)
        side_by_side = (_side_by_side(each, group.number) for each in (queries, keys, values))
        mask = segments.mask(group, window, query) if narrow or (group.context and not again) else None
        output, _ = sdpa_attention_forward(module, *side_by_side, mask, scaling=scaling)
        outputs.append(output[:, -group.length :].flatten(0, 1))
    return torch.cat(outputs)


def _side_by_side(of_row: Tensor, number: int) -> Tensor:
    """Reshape [number x tokens, heads, head size] -> [number, heads, tokens, head size]."""
    return of_row.view(number, -1, *of_row.shape[1:]).transpose(1, 2)


def _is_narrow_on_cpu(query: Tensor) -> bool:
    """Return True for a 16-bit type on a CPU, which attends in float32."""
    return query.device.type == "cpu" and query.dtype.itemsize < torch.float32.itemsize


def is_for_kernel(query: Tensor, value: Tensor) -> bool:
    size = query.shape[-1]
    takes = size == value.shape[-1] and size <= LARGEST_HEAD and size % MULTIPLE == 0
    return takes and query.dtype in (torch.bfloat16, torch.float16) and has_kernels(query.device)


@cache
def has_kernels(device: torch.device) -> bool:
    """Return True if this GPU, or the one that `dagrpo plan` stands in for, has a kernel for sequences of any length in 16 bits."""
    is_here = torch.cuda.is_available()
    return device.type == "cuda" and (not is_here or torch.cuda.get_device_capability(device) >= AMPERE)


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
