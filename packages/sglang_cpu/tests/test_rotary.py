"""Rotary positions against SGLang's own formula, to the bit."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dagrpo_sglang_cpu.rotary import RotaryTables
from torch import Tensor

SIZE, CONTEXT = 16, 50


def embedding(**kinds: object) -> Any:
    angles = torch.arange(CONTEXT)[:, None] * 10_000.0 ** -(torch.arange(SIZE // 2) / (SIZE // 2))
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    known = {"head_size": SIZE, "rotary_dim": SIZE, "is_neox_style": True, "cos_sin_cache": cache}
    return SimpleNamespace(**known | kinds)


def plain(embedding: Any, positions: Tensor, query: Tensor, key: Tensor, *args: object) -> tuple[Tensor, Tensor]:
    """As sglang.srt.layers.rotary_embedding.base.RotaryEmbedding.forward_native, where the whole head is turned."""
    cos, sin = embedding.cos_sin_cache.index_select(0, positions).chunk(2, dim=-1)
    return turned(query, cos, sin), turned(key, cos, sin)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As apply_rotary_emb of the same package."""
    cos, sin = (each.unsqueeze(-2).to(x.dtype) for each in (cos, sin))
    x1, x2 = x.view(len(x), -1, SIZE).chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).reshape(x.shape)


def vectors(tokens: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A query of six heads and a key of two, as parts of one tensor, as a layer's product gives them."""
    both = torch.randn(tokens, 8 * SIZE, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return both[:, : 6 * SIZE], both[:, 6 * SIZE :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 7])
def test_the_bits_are_those_of_sglang(dtype: torch.dtype, tokens: int) -> None:
    positions = torch.randint(0, CONTEXT, (tokens,), generator=torch.Generator().manual_seed(tokens))
    query, key = vectors(tokens, dtype)
    untouched = query.clone(), key.clone()
    ours = RotaryTables().turn(plain, embedding(), positions, query, key)
    theirs = plain(embedding(), positions, query, key)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert [each.shape for each in ours] == [query.shape, key.shape]
    assert torch.equal(query, untouched[0])
    assert torch.equal(key, untouched[1])


def test_layers_of_a_pass_share_a_table_and_the_next_pass_has_its_own() -> None:
    """The positions of a pass may be the tensor of the one before, with other numbers in it."""
    tables, rope, positions = RotaryTables(), embedding(), torch.tensor([3, 4])
    tables.turn(plain, rope, positions, *vectors(2))
    first = next(iter(tables._tables.values()))[1]
    tables.turn(plain, rope, positions, *vectors(2, seed=1))
    assert next(iter(tables._tables.values()))[1] is first
    positions += 1
    tables.forget()
    ours, theirs = tables.turn(plain, rope, positions, *vectors(2)), plain(rope, positions, *vectors(2))
    assert torch.equal(ours[0], theirs[0])


def test_other_positions_within_a_pass_and_another_table_are_told_apart() -> None:
    tables, one, other = RotaryTables(), embedding(), embedding()
    other.cos_sin_cache = other.cos_sin_cache.flip(0)
    for rope in (one, other, one):
        for positions in (torch.tensor([1, 2]), torch.tensor([5, 6])):
            assert torch.equal(
                tables.turn(plain, rope, positions, *vectors(2))[1], plain(rope, positions, *vectors(2))[1]
            )


@pytest.mark.parametrize("kind", [{"is_neox_style": False}, {"rotary_dim": 8}, {"sin_cos_cache": torch.zeros(1)}])
def test_other_forms_are_left_to_sglang(kind: dict[str, object]) -> None:
    theirs = vectors(1)
    assert RotaryTables().turn(lambda *a: theirs, embedding(**kind), torch.tensor([1]), *vectors(1)) is theirs


def test_what_more_is_asked_is_left_to_sglang() -> None:
    theirs = vectors(1)
    tables, positions = RotaryTables(), torch.tensor([1])
    assert tables.turn(lambda *a: theirs, embedding(), positions, *vectors(1), torch.tensor([2])) is theirs
    assert tables.turn(lambda *a: theirs, embedding(), positions.expand(3, 1), *vectors(1)) is theirs
