"""The memory of a micro-batch that is run without values, against real updates on this CPU."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from dagrpo.algorithms.config import Algorithm
from dagrpo.pipeline.plan import activations
from dagrpo.pipeline.plan.activations import Passes, peak_bytes
from dagrpo.pipeline.plan.live_bytes import LiveBytes
from dagrpo.pipeline.plan.sequences import MicroBatch
from dagrpo.pipeline.plan.shape import Shape
from dagrpo.pipeline.plan.stand_in import StandIn
from dagrpo.trainer.config.lora import Lora

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
BATCH = MicroBatch(sequences=8, longest=96, written=48, share=16, samples=4)
CPU = Passes(batch=BATCH, dtype="float32", layout="packed", on_gpu=False)
GPU = Passes(batch=BATCH, dtype="bfloat16", layout="packed", on_gpu=True)
REFERENCE = Algorithm.model_validate({"kl": {"coefficient": 0.1}})
CASES: dict[str, dict[str, Any]] = {
    "packed": {},
    "padded": {"layout": "padded"},
    "bfloat16": {"dtype": "bfloat16"},
    "recomputed": {"checkpointed": True},
    "head in chunks": {"head_chunk": 64},
    "adapter": {"lora": Lora(rank=4)},
    "shared prompts": {"share_prompts": True},
    "reference": {"algorithm": REFERENCE},
    "looks ahead": {"looks_ahead": True},
}
EVERYDAY = {"padded", "adapter", "head in chunks"}


def _shape(family: Any = Qwen3Config, layers: int = 2, **sizes: int) -> Shape:
    return Shape.of(family(num_hidden_layers=layers, head_dim=16, **SIZES | sizes))


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_live_bytes_are_those_computed_by_hand(device: str) -> None:
    """A linear layer from 32 to 8 numbers on 5 rows: its result, then the gradients, the result's an expanded number."""
    live = LiveBytes()
    with StandIn(torch.device(device)), live:
        weight, rows = (torch.empty(*shape, device="meta", requires_grad=True) for shape in ((8, 32), (5, 32)))
        live.start()
        before = live.bytes
        torch.nn.functional.linear(rows, weight).sum().backward()  # type: ignore[no-untyped-call]
    gradients = 4 * (8 * 32 + 5 * 32)
    assert live.bytes - before == gradients
    assert gradients < live.peak - before <= gradients + 4 * (5 * 8 + 2)


@pytest.mark.parametrize(
    "case", [case if case in EVERYDAY else pytest.param(case, marks=pytest.mark.nightly) for case in CASES]
)
def test_an_update_keeps_what_a_real_one_keeps_on_this_cpu(case: str) -> None:
    """The bytes of all tensors that are alive at the peak of a real update, weights and earlier gradients apart."""
    passes, shape = replace(CPU, **CASES[case]), _shape()
    # Padded, a mask is counted that these sequences, which are equally long, do without.
    most = 0.1 if case == "padded" else 0.06
    assert peak_bytes(shape, passes) == pytest.approx(_really(shape.model.config, passes), rel=most)


def _really(config: Any, passes: Passes) -> int:
    """Return the peak of the same update with values."""
    policy, live = activations._policy(config, passes), LiveBytes("cpu")
    reference: Any = activations._frozen(config, passes) if passes.algorithm.kl.coefficient > 0 else None
    batch, left_out = activations._rollouts(config.vocab_size, passes)
    assert not left_out
    update = activations._update(policy, reference, passes, torch.device("cpu"), live)
    for weight in policy.parameters():
        weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
    with live:
        live.start()
        update.run(0, batch, update.computed_before(batch) if passes.looks_ahead else None)
    return max(update.peaks)


@pytest.mark.parametrize("passes", [pytest.param(CPU, marks=pytest.mark.nightly), GPU], ids=["CPU", "GPU"])
def test_the_peak_is_linear_in_tokens(passes: Passes) -> None:
    """At three sizes: 8, 16 and 32 sequences. Each adds the same."""
    few, more, most = (
        peak_bytes(_shape(vocab_size=4096), replace(passes, batch=replace(BATCH, sequences=8 * times, share=256)))
        for times in (1, 2, 4)
    )
    assert (most - more) / (more - few) == pytest.approx(2.0, rel=0.02)
    assert most < 4 * few


@pytest.mark.nightly
@pytest.mark.parametrize(
    "family",
    [Qwen3Config, *(pytest.param(each, marks=pytest.mark.nightly) for each in (LlamaConfig, Qwen2Config))],
)
def test_depth_is_extrapolated_to_what_the_whole_depth_takes(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = _shape(family, layers=6)
    expected = peak_bytes(shape, CPU)
    monkeypatch.setattr(activations, "DEPTHS", (5, 6))
    monkeypatch.setattr(activations, "_cache", {})
    assert peak_bytes(shape, CPU) == pytest.approx(expected)


@pytest.mark.nightly
def test_recomputation_leaves_the_inputs_of_layers_and_chunks_leave_their_logits() -> None:
    """On a GPU in 16 bits: of 32 layers, and of 384 trained tokens with 20,000 logits each, of which 32 tokens remain."""
    deep, wide = _shape(layers=32), _shape(vocab_size=20_000)
    assert peak_bytes(deep, replace(GPU, checkpointed=True)) < 0.25 * peak_bytes(deep, GPU)
    saved = peak_bytes(wide, GPU) - peak_bytes(wide, replace(GPU, head_chunk=32))
    assert saved > 0.8 * 2 * (8 * 48 - 32) * 20_000


LEFT_OUT: dict[str, dict[str, Any]] = {
    "head in chunks": {},
    "adapter": {"lora": Lora(rank=4)},
    "reference": {"algorithm": REFERENCE},
    "looks ahead": {"looks_ahead": True},
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "case", [case if case == "adapter" else pytest.param(case, marks=pytest.mark.nightly) for case in LEFT_OUT]
)
def test_trained_tokens_that_are_left_out_take_no_memory_where_the_head_runs_in_chunks(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2,048 trained tokens with chunks of 256, 512 are run."""
    batch = MicroBatch(sequences=8, longest=300, written=256, share=16)
    passes = replace(GPU, batch=batch, head_chunk=256, **LEFT_OUT[case])
    shape = _shape(vocab_size=60_000)
    whole = peak_bytes(shape, passes)
    monkeypatch.setattr(activations, "MOST_TOKENS", 512)
    monkeypatch.setattr(activations, "_cache", {})
    assert peak_bytes(shape, passes) == pytest.approx(whole, rel=0.02)


@pytest.mark.nightly
def test_the_logits_of_tokens_that_are_left_out_count_where_all_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU: of 384 trained tokens with a vocabulary of 60,000, a twelfth is run."""
    shape = _shape(vocab_size=60_000)
    for chunk in (None, 192):
        passes = replace(CPU, head_chunk=chunk)
        monkeypatch.setattr(activations, "_cache", {})
        monkeypatch.setattr(activations, "MOST_READ", 1 << 30)
        whole = peak_bytes(shape, passes)
        monkeypatch.setattr(activations, "MOST_READ", 32 * 60_000)
        monkeypatch.setattr(activations, "_cache", {})
        assert peak_bytes(shape, passes) == pytest.approx(whole, rel=0.05)
