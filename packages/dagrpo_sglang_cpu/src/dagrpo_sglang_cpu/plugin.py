"""SGLang plugin for the CPU, inert if there is a GPU.

SGLang loads it in each of its processes.

1. Seeded sampling needs --enable-deterministic-inference, which knows no attention backend for a CPU and switches on
   kernels that need a GPU. On a CPU the native kernels are deterministic already, for one composition of the batch.
2. LoRA code pins host memory unconditionally, which torch refuses without an accelerator.
3. Attention, seeded sampling and products with weights, as SGLang does them on a CPU, take most of the time of a small model.
4. A vision tower compares the patches of all pictures of a batch with each other, only to mask most of the result.
5. SGLang's processes are forked from the one that has imported everything, instead of starting to import it three times.
"""

import gc
import importlib
import multiprocessing
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PORTABLE = "DAGRPO_PORTABLE_ARITHMETIC"  # set by dagrpo for runtime.portable_arithmetic
LORA_MODULES = tuple(f"sglang.srt.lora.{name}" for name in ("layers", "lora", "mem_pool", "backend.torch_backend"))
CONSTRUCTORS = ("tensor", "empty", "zeros", "ones", "arange", "full")


def register() -> None:
    """Register the hooks, as the entry point of group sglang.srt.plugins."""
    import torch

    if torch.cuda.is_available():
        return
    from sglang.srt.arg_groups import choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from dagrpo_sglang_cpu.attention import BatchedAttention
    from dagrpo_sglang_cpu.packed import PackedWeights
    from dagrpo_sglang_cpu.picture_attention import attend_within_pictures
    from dagrpo_sglang_cpu.sampling import draw_from_probs, draw_in_slices

    terms: int | None = None
    if os.environ.get(PORTABLE) == "1":
        from dagrpo.utils.portable import TERMS, multiply_portably

        multiply_portably()
        terms = TERMS
    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
    runner = "sglang.srt.model_executor.model_runner.ModelRunner"
    backend = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
    attention, weights = BatchedAttention(), PackedWeights(terms)
    for target, hook, kind in (
        (f"{runner}.maybe_enable_batch_invariant_mode", no_batch_invariant_mode, HookType.REPLACE),
        (f"{runner}.init_lora_manager", unpin_lora, HookType.BEFORE),
        (f"{runner}.load_model", weights.count, HookType.AFTER),
        (f"{backend}.init_forward_metadata", attention.forget, HookType.BEFORE),
        (f"{backend}._run_sdpa_forward_extend", attention.extend, HookType.AROUND),
        (f"{backend}._run_sdpa_forward_decode", attention.decode, HookType.AROUND),
        ("sglang.srt.layers.attention.vision.VisionSdpaAttention.forward", attend_within_pictures, HookType.AROUND),
        (
            "sglang.srt.managers.scheduler.Scheduler.process_input_requests",
            weights.drop_around_requests,
            HookType.AROUND,
        ),
        ("sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply", weights.apply, HookType.AROUND),
        ("sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head", weights.compute_head, HookType.AROUND),
        ("sglang.srt.layers.sampler.sampling_from_probs_torch", draw_from_probs, HookType.AROUND),
        ("sglang.srt.layers.sampler.multinomial_with_seed", draw_in_slices, HookType.AROUND),
        ("sglang.srt.entrypoints.engine._set_envs_and_config", fork_processes, HookType.AFTER),
    ):
        HookRegistry.register(target, hook, kind)


def no_batch_invariant_mode(runner: Any) -> None:
    """Replace the switch to Triton kernels, which need a GPU, and do nothing."""


def fork_processes(result: Any, *args: Any, **kwargs: Any) -> None:
    """Choose `fork`, which shares all imports so far, after SGLang has chosen `spawn`, which only CUDA needs."""
    gc.freeze()  # else the first collection of each process would copy all that it shares
    if _threads() == 1:  # a lock that another thread holds would stay locked in the child
        multiprocessing.set_start_method("fork", force=True)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


class UnpinnedTorch(ModuleType):
    """`torch` for the LoRA modules, with constructors that ignore pin_memory."""

    def __getattr__(self, name: str) -> Any:
        import torch

        attribute = getattr(torch, name)
        if name not in CONSTRUCTORS:
            return attribute

        def construct(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
            return attribute(*args, **kwargs)

        return construct


def unpin_lora(*args: Any, **kwargs: Any) -> None:
    """Make the four LoRA modules, and nothing else, use ordinary memory."""
    import torch

    pin = torch.Tensor.pin_memory

    def pin_elsewhere(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        caller = sys._getframe(1).f_globals["__name__"]
        return tensor if caller in LORA_MODULES else pin(tensor, *args, **kwargs)

    torch.Tensor.pin_memory = pin_elsewhere  # type: ignore[method-assign, assignment]
    for name in LORA_MODULES:
        vars(importlib.import_module(name))["torch"] = UnpinnedTorch("torch")
