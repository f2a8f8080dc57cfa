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

OPERATOR = "murmur_hash32_cpu"


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
def register_hash() -> torch.library.Library:
    """Register the operator, once; it lives as long as the returned library."""
    library = torch.library.Library("sgl_kernel", "FRAGMENT")
    library.define(f"{OPERATOR}(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
    library.impl(OPERATOR, murmur_hash32, "CPU")
    library.impl(OPERATOR, _shape_of_hash, "Meta")
    return library


def _shape_of_hash(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    return seed.new_empty((seed.shape[0], col_indices.shape[0]), dtype=torch.uint32)
