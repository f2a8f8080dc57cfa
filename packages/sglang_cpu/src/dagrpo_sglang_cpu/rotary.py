"""Rotary positions by five operations instead of twenty-five, with the same bits.

Queries and keys are turned together, and what they are turned by is looked up once for all layers of a forward pass.
x1 cos - x2 sin and x2 cos + x1 sin are x (cos, cos) + (x2, x1) (-sin, sin), rounded at the same places.

Letters in shapes: tokens t, query heads h, key-value heads g, head size d.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class RotaryTables:
    """Hook around SGLang's RotaryEmbedding.forward_native; partial and interleaved forms are left to SGLang."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int, torch.dtype], tuple[Any, Tensor, Tensor]] = {}  # of the forward pass under way

    def forget(self, *args: Any, **kwargs: Any) -> None:
        """Before init_forward_metadata: another forward pass begins, with other positions."""
        self._tables.clear()

    def turn(
        self,
        original: Callable[..., tuple[Tensor, Tensor]],
        embedding: Any,
        positions: Tensor,  # [t]
        query: Tensor,  # [t, h * d]
        key: Tensor,  # [t, g * d]
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Turned queries and keys, in the shapes of those given."""
        size = embedding.head_size
        whole = embedding.is_neox_style and embedding.rotary_dim == size and query.dtype == key.dtype
        if args or kwargs or not whole or positions.dim() != 1 or hasattr(embedding, "sin_cos_cache"):
            return original(embedding, positions, query, key, *args, **kwargs)
        cosines, sines = self._looked_up(embedding, positions, query.dtype)
        queries, keys = query.view(len(positions), -1, size), key.view(len(positions), -1, size)
        heads = torch.cat((queries, keys), dim=1)  # [t, h + g, d]
        first, second = heads.chunk(2, dim=-1)
        turned = torch.cat((second, first), dim=-1).mul_(sines).add_(heads.mul_(cosines))
        count = queries.shape[1]
        return turned[:, :count].reshape(query.shape), turned[:, count:].reshape(key.shape)

    def _looked_up(
        self, embedding: Any, positions: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:  # both [t, 1, d]
        """Kept with the positions themselves, so that no other tensor can have their address meanwhile."""
        place = (id(embedding), dtype)
        kept = self._tables.get(place)
        if kept is not None and kept[0] is positions:
            return kept[1], kept[2]
        cosine, sine = embedding.cos_sin_cache.index_select(0, positions).to(dtype).chunk(2, dim=-1)
        cosines, sines = (torch.cat(pair, dim=-1)[:, None] for pair in ((cosine, cosine), (-sine, sine)))
        self._tables[place] = (positions, cosines, sines)
        return cosines, sines
