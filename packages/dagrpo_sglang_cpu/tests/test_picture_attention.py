"""Attention picture by picture, against the one mask over all of them that SGLang makes."""

import itertools
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from dagrpo_sglang_cpu.picture_attention import attend_within_pictures

HEADS, WIDTH = 2, 8
LAYER = SimpleNamespace(scale=0.3, softmax_in_single_precision=False, flatten_batch=True)


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: list[int]) -> torch.Tensor:
    """As SGLang: one row of all patches, of which each sees those of its own part."""
    mask = torch.zeros(len(q), len(q), dtype=torch.bool)
    for start, end in itertools.pairwise(bounds):
        mask[start:end, start:end] = True
    query, key, value = (each[None].transpose(1, 2) for each in (q, k, v))
    attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=LAYER.scale)
    return attended.transpose(1, 2)[0]


def refused(*arguments: Any, **more: Any) -> NoReturn:
    raise AssertionError("there is a way of our own")


@pytest.mark.parametrize(
    "bounds",
    [[0, 0, 12], [0, 4, 8, 12], [0, 0, 4, 8, 11, 12], [0, 1, 1, 5, 12]],
    ids=["one picture", "of one size", "of several sizes", "an empty part"],
)
def test_each_part_attends_to_itself_alone(bounds: list[int]) -> None:
    generator = torch.Generator().manual_seed(len(bounds))
    q, k, v = (torch.randn(12, HEADS, WIDTH, generator=generator) for _ in range(3))
    output = attend_within_pictures(refused, LAYER, q, k, v, 1, cu_seqlens=torch.tensor(bounds, dtype=torch.int32))
    assert torch.allclose(output, masked(q, k, v, bounds), atol=1e-6)


def test_what_a_picture_attends_to_is_the_same_to_the_bit_beside_others_of_other_sizes() -> None:
    q, k, v = (torch.randn(20, HEADS, WIDTH, generator=torch.Generator().manual_seed(5)) for _ in range(3))
    alone = attend_within_pictures(refused, LAYER, q[:12], k[:12], v[:12], 1, cu_seqlens=torch.tensor([0, 12]))
    beside = attend_within_pictures(refused, LAYER, q, k, v, 1, cu_seqlens=torch.tensor([0, 12, 20]))
    assert torch.equal(beside[:12], alone)


def test_other_forms_of_attention_are_left_to_sglang() -> None:
    q = torch.zeros(4, HEADS, WIDTH)
    asked: list[dict[str, Any]] = []

    def original(layer: Any, *arguments: Any, **more: Any) -> torch.Tensor:
        asked.append(more)
        return q

    attend_within_pictures(original, LAYER, q, q, q, 1)
    attend_within_pictures(original, LAYER, q, q, q, 1, attention_mask=torch.ones(4, 4))
    for other in ({"softmax_in_single_precision": True}, {"flatten_batch": False}):
        layer = SimpleNamespace(**{**vars(LAYER), **other})
        attend_within_pictures(original, layer, q, q, q, 1, cu_seqlens=torch.tensor([0, 4]))
    assert len(asked) == 4
