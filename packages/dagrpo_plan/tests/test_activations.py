"""The memory of a micro-batch in closed form, against bytes of tensors that were counted while updates ran."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.step_memory import in_a_process, params_of
from transformers import AutoConfig, Qwen3Config

from dagrpo.models.make import make_model
from dagrpo.models.published import CONFIGS
from dagrpo_plan.amounts import MicroBatch
from dagrpo_plan.models import Shape
from dagrpo_plan.training import Activations, Passes

SMALL = Qwen3Config(
    vocab_size=2000,
    hidden_size=128,
    intermediate_size=352,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    tie_word_embeddings=True,
)
BATCH = MicroBatch(sequences=8, longest=96, written=48, share=16)
CPU = Passes(batch=BATCH, dtype="float32", layout="packed", on_gpu=False)
SHARED = {"batch": replace(BATCH, samples=4)}
# The most bytes of tensors that were alive during a real update of SMALL on a CPU, weights and their gradients apart.
REAL: dict[str, tuple[dict[str, Any], int, float]] = {
    "packed": ({}, 56_970_644, 0.02),
    "padded": ({"layout": "padded"}, 55_704_980, 0.04),
    "padded, 16 bits": ({"layout": "padded", "dtype": "bfloat16"}, 39_440_692, 0.06),
    "bfloat16": ({"dtype": "bfloat16"}, 39_483_700, 0.04),
    "recomputed": ({"checkpointed": True}, 13_779_356, 0.02),
    "recomputed, 16 bits": ({"dtype": "bfloat16", "checkpointed": True}, 11_245_876, 0.02),
    "head in chunks": ({"head_chunk": 64}, 52_302_236, 0.03),
    "adapter": ({"rank": 4}, 50_209_172, 0.02),
    "adapter, recomputed": ({"rank": 4, "checkpointed": True}, 11_747_740, 0.1),
    "shared prompts": (SHARED, 41_177_404, 0.02),
    "reference": ({"reference": True}, 60_243_860, 0.03),
    "looks ahead": ({"looks_ahead": True}, 56_973_716, 0.02),
}


@pytest.mark.parametrize("case", REAL)
def test_the_peak_is_that_of_a_real_update_on_a_cpu(case: str) -> None:
    changes, real, most = REAL[case]
    assert Activations(Shape.of(SMALL), replace(CPU, **changes)).peak == pytest.approx(real, rel=most)


WHOLE = MicroBatch(sequences=14, longest=1105, written=1024, share=512)
LONG = replace(WHOLE, sequences=1, longest=16_384, written=16_000)
GPU = Passes(batch=WHOLE, dtype="bfloat16", layout="packed", on_gpu=True, head_chunk=2048, checkpointed=True)
KEPT = {"checkpointed": False}
F32 = {"dtype": "float32", "layout": "padded"}
SMALL_TIED, LARGE = "Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-7B-Instruct"
# 10^9 bytes of both models, counted while the trainer's own update ran on tensors without values of a GPU.
COUNTED: dict[str, tuple[dict[str, Any], float, float]] = {
    "recomputed": ({}, 4.02, 22.16),
    "kept": (KEPT, 34.26, 116.22),
    "a share of the weights": ({"sharded": True}, 2.83, 7.88),
    "a share, kept": ({"sharded": True} | KEPT, 33.07, 102.07),
    "larger chunks": ({"head_chunk": 8192}, 5.89, 23.56),
    "adapter": ({"rank": 16}, 3.39, 20.99),
    "adapter, kept": ({"rank": 16} | KEPT, 29.21, 108.10),
    "head in float32": ({"float32_head": True}, 4.75, 22.85),
    "padded": ({"layout": "padded"} | KEPT, 36.98, 122.49),
    "float32": (F32, 4.89, 15.55),
    "float32, kept": (F32 | KEPT, 61.14, 199.91),
    "two sequences": ({"batch": replace(WHOLE, sequences=2)}, 3.12, 18.56),
    "one long sequence": ({"batch": LONG}, 4.09, 22.63),
    "one long sequence, kept": ({"batch": LONG} | KEPT, 36.11, 122.03),
}


@pytest.mark.parametrize("case", COUNTED)
def test_the_peak_on_a_gpu_is_that_of_the_update_without_values(case: str) -> None:
    changes, *counted = COUNTED[case]
    for repository, expected in zip((SMALL_TIED, LARGE), counted, strict=True):
        shape = Shape.of(AutoConfig.for_model(**CONFIGS[repository]))
        assert Activations(shape, replace(GPU, **changes)).peak / 1e9 == pytest.approx(expected, rel=0.02)


def test_a_first_micro_batch_is_fullest_before_there_are_gradients() -> None:
    """Counted beside weights and gradients: 1.64 x 10^9 bytes instead of 4.02, of which the gradients take 2.38 later."""
    shape = Shape.of(AutoConfig.for_model(**CONFIGS[SMALL_TIED]))
    first = Activations(shape, replace(GPU, accumulates=False)).peak
    assert first / 1e9 == pytest.approx(1.64, rel=0.02)
    assert first + 4 * shape.weights == pytest.approx(Activations(shape, GPU).peak)


@pytest.mark.nightly
def test_an_update_takes_what_is_planned(tmp_path: Path) -> None:
    """Every larger tensor is mapped by itself: otherwise the allocator's holes, which vary, would count, too."""
    make_model(tmp_path / "model", params_of("float32", smollm2=False).model)
    found = in_a_process("float32", tmp_path / "model", smollm2=False, apart=True)
    assert 0.85 < (found.planned - found.holes) / found.measured < 1.5
