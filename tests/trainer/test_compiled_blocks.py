"""Blocks that torch compiles: one graph for batches of any lengths, in packed rows as a GPU attends to them and in padded ones."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen2Config, Qwen2ForCausalLM

from dagrpo.trainer import packed_attention
from dagrpo.trainer.packing import Batch, TokenSequences
from dagrpo.trainer.policy import Policy, token_logprobs

CPU = torch.device("cpu")
LENGTHS = ([20, 30, 9], [17, 40, 11, 5], [33, 33, 8], [50, 12])


def attention_of_any_lengths(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, seen_ends: Tensor, *longest: int, **options: Any
) -> Tensor:
    """Return what the GPU's kernel does, without a window: [tokens, heads, head size]."""
    segment, place = _places(query, ends)
    seen_segment, seen_place = _places(key, seen_ends)
    before = (seen_ends.diff() - ends.diff())[segment]  # tokens of the prompt that a segment follows
    mask = (segment[:, None] == seen_segment) & (seen_place <= (place + before)[:, None])
    query, key, value = (each.transpose(0, 1)[None] for each in (query, key, value))
    output = scaled_dot_product_attention(query, key, value, mask, scale=options["scale"], enable_gqa=True)
    return output[0].transpose(0, 1)


def _places(tokens: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    everywhere = torch.arange(tokens.shape[0])
    segment = torch.searchsorted(ends, everywhere, right=True) - 1
    return segment, everywhere - ends[segment]


def _batch(lengths: list[int], layout: str) -> Batch:
    ids = [[1, 2, 3, *range(4, length + 1)] for length in lengths]
    whole = TokenSequences.of(ids, [[False] * 3 + [True] * (length - 3) for length in lengths])
    share = layout == "shared prompts"
    return whole.laid_out(range(len(ids)), 0, CPU, "padded" if layout == "padded" else "packed", share_prompts=share)


@pytest.mark.parametrize("layout", ["padded", "packed", "shared prompts"])
def test_one_graph_without_breaks_takes_batches_of_any_lengths(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logprobs are those of blocks that are not compiled, to 1e-5, and so are the gradients."""
    monkeypatch.setattr(packed_attention, "is_for_kernel", lambda query, value: True)
    monkeypatch.setattr(packed_attention, "varlen_attn", attention_of_any_lengths)
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64
    )  # fmt: skip
    policy = Policy(Qwen2ForCausalLM(config).eval())
    policy.take_packed()
    batches = [_batch(lengths, layout) for lengths in LENGTHS]
    eager = [_computed(policy, batch) for batch in batches]
    torch._dynamo.reset()
    counters.clear()
    for layer in policy.model.model.layers:
        layer.compile(dynamic=True, backend="aot_eager")
    for batch, known in zip(batches, eager, strict=True):
        for now, before in zip(_computed(policy, batch), known, strict=True):
            torch.testing.assert_close(now, before, rtol=1e-5, atol=1e-5)
    assert (counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())) == (1, 0)
    torch._dynamo.reset()


def _computed(policy: Policy, batch: Batch) -> tuple[Tensor, ...]:
    policy.zero_grad()
    logprobs = token_logprobs(policy, batch, 1.0).logprobs
    torch.autograd.backward(logprobs.sum())
    return logprobs.detach(), *(each.grad for each in policy.parameters() if each.grad is not None)
