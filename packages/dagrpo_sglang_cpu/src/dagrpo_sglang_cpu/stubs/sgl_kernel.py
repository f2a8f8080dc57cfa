"""Stub of SGLang's kernel package, which PyPI has for GPUs alone.

Its kernels for a CPU with AMX are to be built from source; nothing here needs them.

SGLang imports its names, then takes its native torch paths and calls none of them, except the hash behind seeded
sampling, which is registered here as the operator sgl_kernel::murmur_hash32_cpu. Five more operators are looked up when
its vision-language models are imported, and called by none that is served here: they have a name, and nothing behind it.
"""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NoReturn

import torch

from dagrpo.utils.murmur import murmur_hash32

OPERATOR = "sgl_kernel::murmur_hash32_cpu"
# SGLang's Qwen3.5 takes these from torch.ops when it is imported, and what prepares the pictures of any Qwen-VL imports it.
NAMED_AT_IMPORT = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_gdn_gating_cpu",
)


def fill(module: ModuleType) -> None:
    """Give a module every public name, as a function that refuses to run."""
    register_operators()

    def missing(name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            raise NotImplementedError(
                f"{module.__name__}.{name} needs a GPU, or sgl_kernel built from source for a CPU with AMX"
            )

        return refuse

    module.__getattr__ = missing  # type: ignore[method-assign]


@cache
def register_operators() -> None:
    """Register the hash and the names, once."""
    torch.library.define(OPERATOR, "(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
    torch.library.impl(OPERATOR, "cpu", murmur_hash32)
    for name in NAMED_AT_IMPORT:  # without an implementation: torch refuses to call them
        torch.library.define(f"sgl_kernel::{name}", "() -> ()")
