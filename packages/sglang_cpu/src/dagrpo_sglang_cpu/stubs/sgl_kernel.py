"""SGLang's kernel package, which has no build for a CPU without AMX.

SGLang imports its names, then takes its native torch paths and calls none of them, except the hash behind seeded
sampling, which is registered here as the operator sgl_kernel::murmur_hash32_cpu.
"""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NoReturn

import torch

from dagrpo_sglang_cpu.murmur import murmur_hash32

OPERATOR = "sgl_kernel::murmur_hash32_cpu"


def fill(module: ModuleType) -> None:
    """Give a module every public name, as a function that refuses to run."""
    register_hash()

    def missing(name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            raise NotImplementedError(f"{module.__name__}.{name} needs a GPU or a CPU with AMX")

        return refuse

    module.__getattr__ = missing  # type: ignore[method-assign]


@cache
def register_hash() -> None:
    """Register the operator, once."""
    torch.library.define(OPERATOR, "(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
    torch.library.impl(OPERATOR, "cpu", murmur_hash32)
