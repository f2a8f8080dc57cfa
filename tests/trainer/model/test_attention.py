"""Attention in float32 on a CPU, where a policy computes in a type of 16 bits."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from dagrpo.trainer.model.attention import IN_FLOAT32, attended_in_float32
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.utils.distributed import single_process

MODULE: Any = SimpleNamespace(is_causal=True, num_key_value_groups=2, training=False)


def _drawn(dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys and values of three sequences of nine tokens, four heads and two."""
    drawn = torch.Generator().manual_seed(0)
    return [torch.randn(3, heads, 9, 16, generator=drawn).to(dtype).requires_grad_() for heads in (4, 2, 2)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_result_is_nearer_to_the_exact_one_and_comes_back_in_the_policys_type(dtype: torch.dtype) -> None:
    own = _drawn(dtype)
    exact, _ = sdpa_attention_forward(MODULE, *[each.double() for each in own], None)
    narrow, _ = sdpa_attention_forward(MODULE, *own, None)
    wide, _ = attended_in_float32(MODULE, own[0], own[1], own[2], None)
    assert wide.dtype == dtype
    assert wide.shape == exact.shape
    assert (wide - exact).abs().mean() <= (narrow - exact).abs().mean()


def test_its_gradient_is_that_of_the_exact_attention_but_for_rounding() -> None:
    own, exact = _drawn(torch.bfloat16), [each.detach().double().requires_grad_() for each in _drawn(torch.bfloat16)]
    attended_in_float32(MODULE, own[0], own[1], own[2], None)[0].float().square().sum().backward()  # type: ignore[no-untyped-call]
    sdpa_attention_forward(MODULE, *exact, None)[0].square().sum().backward()
    for ours, theirs in zip(own, exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("mask", [torch.bool, torch.bfloat16])
def test_a_mask_hides_what_it_hid(mask: torch.dtype) -> None:
    """By flags, or by what is added to the scores."""
    own = _drawn(torch.bfloat16)
    seen = torch.ones(9, 9, dtype=torch.bool).tril(-1) | torch.eye(9, dtype=torch.bool)
    given = seen if mask == torch.bool else torch.zeros(9, 9, dtype=mask).masked_fill(~seen, float("-inf"))
    masked, _ = attended_in_float32(MODULE, own[0], own[1], own[2], given[None, None].expand(3, 1, 9, 9))
    causal, _ = attended_in_float32(MODULE, own[0], own[1], own[2], None)
    torch.testing.assert_close(masked, causal)


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, "sdpa"), (torch.bfloat16, IN_FLOAT32)])
def test_a_policy_has_it_where_it_computes_in_16_bits(
    inputs: tuple[Path, Path], dtype: torch.dtype, expected: str
) -> None:
    policy = load_policy(inputs[0], single_process(), dtype=dtype)
    assert policy.model.config._attn_implementation == expected
