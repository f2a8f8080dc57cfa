"""Attention over many requests at once, instead of SGLang's loop.

SGLang's torch_native backend calls torch once per request and layer; with a small model those calls take most of the
time. Here requests of similar length share one call. Lengths are padded to a multiple of BLOCK, so with one
thread (OMP_NUM_THREADS=1) the result for a request depends on its own length alone, not on its neighbours.

Letters in shapes: requests b, query heads h, key-value heads g, head size d, new tokens q, all tokens l.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 32
MAX_SCORES = 1 << 24  # attention scores held at a time: 64 MiB in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Requests that share one call, padded to q new tokens and l tokens in all."""

    requests: int
    queries: torch.Tensor  # [b * q]: rows of the batch's new tokens; padding repeats row 0
    keys: torch.Tensor  # [b * g * l]: rows of the cache, of one slot and head each; padding repeats those of slot 0
    visible: torch.Tensor  # [b, 1, q * h / g, l], bool: what each query may attend to
    real: torch.Tensor  # [new tokens]: which of `queries` are no padding
    unseen: torch.Tensor | None  # [b * g, 1, l]: where every request has one new token: -inf where padding is, else 0


def group_requests(
    slots: torch.Tensor,  # [b, context]: where each token of a request lies in the key-value cache
    new_lengths: torch.Tensor,  # [b]
    total_lengths: torch.Tensor,  # [b]
    heads: int,
    shared: int,  # query heads per key-value head
) -> list[Group]:
    """Sort a batch into groups; every layer of one forward pass uses the same."""
    head = torch.arange(heads // shared)
    starts = new_lengths.cumsum(0) - new_lengths
    groups = []
    for members, queries, keys in _of_similar_length(new_lengths.tolist(), total_lengths.tolist(), heads):
        new, total, start = (lengths[members, None] for lengths in (new_lengths, total_lengths, starts))
        offsets, positions = torch.arange(queries), torch.arange(keys)
        real = offsets < new  # [b, q]
        last_visible = torch.where(real, total - new + offsets, 0)  # [b, q]; padding sees one token: no row is empty
        visible = positions <= last_visible[:, :, None]  # [b, q, l]
        cached = torch.where(
            positions < total, slots[members[:, None], positions.clamp(max=slots.shape[1] - 1)], 0
        )  # [b, l]
        groups.append(
            Group(
                requests=len(members),
                queries=torch.where(real, start + offsets, 0).flatten(),
                keys=(cached[:, None] * len(head) + head[:, None]).flatten(),
                visible=visible.repeat_interleave(shared, dim=1)[:, None],
                real=real.flatten().nonzero()[:, 0],
                unseen=_unseen(visible, len(head)) if queries == 1 else None,
            )
        )
    return groups


def _of_similar_length(new: list[int], total: list[int], heads: int) -> Iterator[tuple[torch.Tensor, int, int]]:
    """Yield members, padded number of new tokens, padded number of all tokens; the scores of each fit into MAX_SCORES."""
    similar: dict[tuple[int, int], list[int]] = defaultdict(list)
    for member, lengths in enumerate(zip(new, total, strict=True)):
        similar[1 if lengths[0] == 1 else _padded(lengths[0]), _padded(lengths[1])].append(member)
    for (queries, keys), members in sorted(similar.items()):
        at_once = max(1, MAX_SCORES // (heads * queries * keys))
        for first in range(0, len(members), at_once):
            yield torch.tensor(members[first : first + at_once]), queries, keys


def _padded(length: int) -> int:
    return -(-length // BLOCK) * BLOCK


def _unseen(visible: torch.Tensor, heads: int) -> torch.Tensor:  # [b, 1, l] -> [b * g, 1, l]
    return torch.where(visible, 0.0, -math.inf).repeat_interleave(heads, dim=0)


def attend(
    groups: list[Group],
    query: torch.Tensor,  # [new tokens, h, d]
    output: torch.Tensor,  # [new tokens, h, d], filled
    k_cache: torch.Tensor,  # [slots, g, d]
    v_cache: torch.Tensor,  # [slots, g, d]
    scale: float | None,
) -> torch.Tensor:
    """Compute causal attention of each request's new tokens over all of its tokens.

    The query heads that share a key-value head are treated as further queries of it: nothing is copied per head.
    """
    scale = query.shape[2] ** -0.5 if scale is None else scale
    for group in groups:
        if group.unseen is None:
            rows = _of_several(group, query, k_cache, v_cache, scale)[group.real]
            output[group.queries[group.real]] = rows
        else:
            output.index_copy_(0, group.queries, _of_one(group, group.unseen, query, k_cache, v_cache, scale))
    return output


def _of_several(
    group: Group, query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, scale: float
) -> torch.Tensor:  # [b * q, h, d]
    _, heads, size = query.shape
    shared = heads // k_cache.shape[1]
    folded = query[group.queries].view(group.requests, -1, heads // shared, shared, size)  # [b, q, g, h / g, d]
    keys, values = (
        _gathered(cache, group).view(group.requests, heads // shared, -1, size).to(query.dtype)
        for cache in (k_cache, v_cache)
    )  # [b, g, l, d]
    mixed = scaled_dot_product_attention(
        folded.transpose(1, 2).flatten(2, 3),  # [b, g, q * h / g, d]
        keys,
        values,
        attn_mask=group.visible,
        scale=scale,
    )
    unfolded = mixed.reshape(group.requests, heads // shared, -1, shared, size).transpose(1, 2)  # [b, q, g, h / g, d]
    return unfolded.reshape(-1, heads, size)


def _of_one(
    group: Group, unseen: torch.Tensor, query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, scale: float
) -> torch.Tensor:  # [b, h, d]
    """Compute attention where every request has one new token, by two matrix products over all requests at once.

    As in scaled_dot_product_attention, scores and softmax are float32, and the weights of the values have their type.
    """
    _, heads, size = query.shape
    weighed = (
        torch.bfloat16 if query.dtype == torch.bfloat16 else torch.float32
    )  # float16 has no fast products on a CPU
    folded = query.index_select(0, group.queries).view(len(unseen), -1, size).float()  # [b * g, h / g, d]
    keys, values = (
        _gathered(cache, group).view(len(unseen), -1, size) for cache in (k_cache, v_cache)
    )  # [b * g, l, d]
    scores = torch.baddbmm(unseen, folded, keys.float().transpose(1, 2), alpha=scale)  # [b * g, h / g, l]
    mixed = torch.bmm(scores.softmax(dim=-1).to(weighed), values.to(weighed))
    return mixed.view(-1, heads, size).to(query.dtype)


def _gathered(cache: torch.Tensor, group: Group) -> torch.Tensor:  # [b * g * l, d]
    return cache.view(-1, cache.shape[2]).index_select(0, group.keys)


class BatchedAttention:
    """Hooks around the two loops of TorchNativeAttnBackend, which still run rarer kinds of attention."""

    def __init__(self) -> None:
        self._groups: list[Group] | None = None  # of the forward pass under way

    def forget(self, *args: Any, **kwargs: Any) -> None:
        """Forget the groups before init_forward_metadata: another forward pass begins."""
        self._groups = None

    def extend(
        self,
        loop: Callable[..., torch.Tensor],
        backend: Any,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,  # [request slots, context]
        req_pool_indices: torch.Tensor,  # [b]
        seq_lens: torch.Tensor,  # [b]
        extend_prefix_lens: torch.Tensor,  # [b]
        extend_seq_lens: torch.Tensor,  # [b]
        encoder_lens: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Compute prompts in place of _run_sdpa_forward_extend."""
        positional = (query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens)
        if encoder_lens is not None or not options["causal"] or options["sliding_window_size"] is not None:
            return loop(backend, *positional, extend_prefix_lens, extend_seq_lens, encoder_lens, **options)
        return self._attend(*positional, extend_seq_lens, options["scaling"])

    def decode(
        self,
        loop: Callable[..., torch.Tensor],
        backend: Any,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,  # [request slots, context]
        req_pool_indices: torch.Tensor,  # [b]
        seq_lens: torch.Tensor,  # [b]
        encoder_lens: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Compute one new token per request in place of _run_sdpa_forward_decode."""
        positional = (query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens)
        if encoder_lens is not None or options["sliding_window_size"] is not None:
            return loop(backend, *positional, encoder_lens, **options)
        return self._attend(*positional, torch.ones_like(seq_lens), options["scaling"])

    def _attend(
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        new_lengths: torch.Tensor,
        scale: float | None,
    ) -> torch.Tensor:
        if self._groups is None:
            heads = query.shape[1]
            slots = req_to_token[req_pool_indices]
            self._groups = group_requests(slots, new_lengths, seq_lens, heads, heads // k_cache.shape[1])
        return attend(self._groups, query, output, k_cache, v_cache, scale)
