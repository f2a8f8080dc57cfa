"""What is counted without values: by hand, and against real updates on this CPU."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from dagrpo.algorithms.config import Algorithm
from dagrpo.pipeline.plan import update
from dagrpo.pipeline.plan.counting import Counting, Kernel
from dagrpo.pipeline.plan.sequences import MicroBatch
from dagrpo.pipeline.plan.stand_in import StandIn
from dagrpo.pipeline.plan.update import Passes, work_of
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
GPU: dict[str, Any] = {"batch": BATCH, "dtype": "bfloat16", "layout": "packed", "on_gpu": True}
CASES: dict[str, dict[str, Any]] = {
    "packed": {},
    "padded": {"layout": "padded"},
    "bfloat16": {"dtype": "bfloat16"},
    "recomputed": {"checkpointed": True},
    "head in chunks": {"head_chunk": 64},
    "adapter": {"lora": Lora(rank=4)},
    "shared prompts": {"share_prompts": True},
    "reference": {"algorithm": Algorithm.model_validate({"kl": {"coefficient": 0.1}})},
    "looks ahead": {"looks_ahead": True},
}

EVERYDAY = {"padded", "adapter", "head in chunks"}


def _counted(device: torch.device) -> Counting:
    """Count a linear layer from 32 to 8 numbers on 5 rows, forward and backward, in float32."""
    counting = Counting()
    with StandIn(device, counting.mark), counting:
        weight, rows = (torch.empty(*shape, device="meta", requires_grad=True) for shape in ((8, 32), (5, 32)))
        counting.start()
        torch.nn.functional.linear(rows, weight).sum().backward()  # type: ignore[no-untyped-call]
    return counting


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_linear_layer_takes_the_products_and_the_bytes_counted_by_hand(device: str) -> None:
    counting = _counted(torch.device(device))
    products = [kernel for kernel in counting.kernels.elements() if kernel.flops]
    assert [kernel.flops for kernel in products] == [2 * 5 * 32 * 8] * 3
    rows, weight, result, one = 4 * 5 * 32, 4 * 8 * 32, 4 * 5 * 8, 4
    assert sorted(kernel.bytes for kernel in products) == sorted(
        [rows + weight + result, rows + weight + one, rows + weight + one]
    ), "the gradient of a sum is one number, wherever it is read"


def test_a_chain_of_kernels_is_joined_into_one_that_reads_its_inputs_and_writes_what_stays() -> None:
    """Of a thousand numbers in float32: three operations, each of which reads one tensor and writes another."""
    counting = Counting()
    with counting:
        start = torch.empty(1000, device="meta")
        end = start.neg().exp().sin()
        counting.mark()
    assert end.shape == start.shape
    assert sum(kernel.bytes for kernel in counting.kernels.elements()) == 3 * 8000
    assert [kernel.bytes for kernel in counting.joined.elements()] == [8000]


def test_attention_of_packed_rows_has_half_the_products_of_every_pair_of_tokens() -> None:
    """8 sequences of 96 tokens with 4 heads of 16: scores and values, 2 x 2 x 96 x 96 x 64 each, and two and a half times that back."""
    work = work_of(Qwen2Config(num_hidden_layers=2, **SIZES), Passes(**GPU))
    attention = work.sum(lambda kernel: kernel.flops * kernel.attends, compiled=False)
    assert attention == 2 * 3.5 * 8 * 0.5 * 4 * 96 * 96 * 64


def test_a_gpu_takes_the_kernels_that_a_gpu_takes() -> None:
    names = {
        kernel.name for kernel in work_of(Qwen2Config(num_hidden_layers=2, **SIZES), Passes(**GPU)).counts[0].kernels
    }
    assert {"_varlen_attn", "_varlen_attn_backward"} <= names
    padded = work_of(Qwen2Config(num_hidden_layers=2, **SIZES), Passes(**GPU | {"layout": "padded"}))
    assert "_scaled_dot_product_efficient_attention" in {kernel.name for kernel in padded.counts[0].kernels}


@pytest.mark.parametrize(
    "family",
    [Qwen3Config, *(pytest.param(each, marks=pytest.mark.nightly) for each in (LlamaConfig, Qwen2Config))],
)
def test_depth_is_extrapolated_to_what_the_whole_depth_takes(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = family(num_hidden_layers=6, head_dim=16, **SIZES)

    def figures() -> list[float]:
        work = work_of(config, CPU)
        of_bytes = [work.sum(lambda kernel: kernel.bytes, compiled=compiled) for compiled in (False, True)]
        return [work.peak, work.flops, *of_bytes]

    expected = figures()
    monkeypatch.setattr(update, "DEPTHS", (5, 6))
    monkeypatch.setattr(update, "_cache", {})
    whole = figures()
    assert expected[:3] == pytest.approx(whole[:3])
    assert expected[3] == pytest.approx(whole[3], rel=0.02)


@pytest.mark.parametrize(
    "case", [case if case in EVERYDAY else pytest.param(case, marks=pytest.mark.nightly) for case in CASES]
)
def test_an_update_keeps_what_a_real_one_keeps_on_this_cpu(case: str) -> None:
    """The bytes of all tensors that are alive at the peak of a real update, weights and earlier gradients apart."""
    passes = Passes(**{**_fields(CPU), **CASES[case]})
    config = Qwen3Config(num_hidden_layers=2, head_dim=16, **SIZES)
    # Padded, a mask is counted that these sequences, which are equally long, do without.
    most = 0.1 if case == "padded" else 0.06
    assert work_of(config, passes).peak == pytest.approx(_really(config, passes), rel=most)


def _fields(passes: Passes) -> dict[str, Any]:
    return {name: getattr(passes, name) for name in Passes.__slots__}


def _really(config: Any, passes: Passes) -> int:
    """Return the peak of the same update with values."""
    policy = update._policy(config, passes)
    reference: Any = None
    if passes.algorithm.kl.coefficient > 0:
        reference = update._frozen(config, passes)
    batch, left_out = update._rollouts(config.vocab_size, passes)
    assert not left_out
    step = update._update(policy, reference, passes, torch.device("cpu"))
    for weight in policy.parameters():
        weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
    counting = Counting("cpu")
    peak = 0

    def after_backward(*_: object) -> None:
        nonlocal peak
        peak = counting.peak

    step._optimizer.register_step_pre_hook(after_backward)
    with counting:
        counting.start()
        step.run(0, batch, step.computed_before(batch) if passes.looks_ahead else None)
    return peak


def test_kernels_are_the_same_however_often_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Qwen2Config(num_hidden_layers=2, **SIZES)
    first = work_of(config, Passes(**GPU))
    monkeypatch.setattr(update, "_cache", {})
    again = work_of(config, Passes(**GPU))
    assert again.peak == first.peak
    assert [each.kernels for each in again.counts] == [each.kernels for each in first.counts]


LEFT_OUT: dict[str, dict[str, Any]] = {
    "head in chunks": {},
    "adapter": {"lora": Lora(rank=4)},
    "reference": {"algorithm": Algorithm.model_validate({"kl": {"coefficient": 0.1}})},
    "looks ahead": {"looks_ahead": True},
}


@pytest.mark.parametrize(
    "case", [case if case == "adapter" else pytest.param(case, marks=pytest.mark.nightly) for case in LEFT_OUT]
)
def test_trained_tokens_that_are_left_out_count_as_those_that_are_not(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2,048 trained tokens with chunks of 256, 512 are counted: with a vocabulary that makes the head most of the work."""
    batch = MicroBatch(sequences=8, longest=300, written=256, share=16)
    passes = Passes(**{**GPU, "batch": batch, "head_chunk": 256, **LEFT_OUT[case]})
    config = Qwen3Config(num_hidden_layers=2, head_dim=16, **SIZES | {"vocab_size": 60_000})
    whole = work_of(config, passes)
    monkeypatch.setattr(update, "MOST_TOKENS", 512)
    monkeypatch.setattr(update, "_cache", {})
    part = work_of(config, passes)
    assert part.flops == whole.flops
    assert part.peak == pytest.approx(whole.peak, rel=0.02)
    figures = [work.sum(lambda kernel: kernel.bytes, compiled=False) for work in (part, whole)]
    assert figures[0] == pytest.approx(figures[1], rel=0.25)


def test_the_logits_of_tokens_that_are_left_out_count_where_all_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU: of 384 trained tokens with a vocabulary of 60,000, a twelfth is counted."""
    config = Qwen3Config(num_hidden_layers=2, head_dim=16, **SIZES | {"vocab_size": 60_000})
    for chunk in (None, 192):
        passes = Passes(**{**_fields(CPU), "head_chunk": chunk})
        monkeypatch.setattr(update, "_cache", {})
        monkeypatch.setattr(update, "MOST_READ", 1 << 30)
        whole = work_of(config, passes)
        monkeypatch.setattr(update, "MOST_READ", 32 * 60_000)
        monkeypatch.setattr(update, "_cache", {})
        assert work_of(config, passes).peak == pytest.approx(whole.peak, rel=0.05)


def test_a_kernel_that_attends_is_told_from_a_product() -> None:
    names = {"_varlen_attn": True, "_scaled_dot_product_flash_attention_backward": True, "mm": False}
    kernels = {name: Kernel(name=name, dtype=torch.float32, flops=1, bytes=1) for name in names}
    assert {name: kernel.attends for name, kernel in kernels.items()} == names
