"""Arithmetic with the same bytes on every x86-64 processor with AVX2.

torch and MKL choose kernels by the processor's vendor and instruction sets, which add up in different orders. oneDNN's kernels for
products in float32 add up to `TERMS` terms one after the other, however wide their instructions are: longer sums are cut. What torch, MKL
and numpy compute besides is limited to instructions that all of these processors have.
"""

import os
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

from dagrpo.utils.environment import has_avx2

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TERMS = 512  # in sums of 576 and 1,024 terms kernels for AVX2 and AVX-512 differ
PORTABLE_CPU = "cpu, portable"  # as a device
SWITCH = "DAGRPO_PORTABLE_ARITHMETIC"
VARIABLES = {
    SWITCH: "1",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",
}


def is_portable() -> bool:
    """Return True if this process computes with portable arithmetic."""
    return os.environ.get(SWITCH) == VARIABLES[SWITCH]


def compute_portably(on: bool) -> None:
    """Limit the instructions of libraries imported after this, in this process and its children.

    `on`: runtime.portable_arithmetic; it has no effect on a processor without AVX2.
    """
    if on and has_avx2():
        os.environ.update(VARIABLES)
    elif is_portable():  # by a variable that another run has left
        for name in VARIABLES:
            os.environ.pop(name, None)


def multiply_portably() -> None:
    """Let oneDNN compute products of float32 matrices on the CPU from now on, if this process computes with portable arithmetic."""
    if is_portable():
        _replace_products()


@cache
def _replace_products() -> "torch.library.Library":
    import torch

    library: Any = torch.library  # of which no types are declared
    kernels: torch.library.Library = library.Library("aten", "IMPL")  # its kernels are there as long as it is
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced
        for name, kernel in {"mm": _product, "addmm": _product_and_sum}.items():
            library.Library.impl(kernels, name, kernel, "CPU")
    return kernels


def _product(a: "Tensor", b: "Tensor") -> "Tensor":
    """Compute aten::mm: [m, k] and [k, n] give [m, n]."""
    import torch

    if a.dtype != torch.float32 or not a.numel() or not b.numel():
        return torch.mm(a, b, out=a.new_empty(a.shape[0], b.shape[1]))
    multiply = torch.ops.mkldnn._linear_pointwise
    pieces = zip(torch.split(a, TERMS, dim=1), torch.split(b, TERMS), strict=True)
    total, *parts = (multiply(left, right.t(), None, "none", [], "") for left, right in pieces)
    for part in parts:
        total += part
    return total  # type: ignore[no-any-return]


def _product_and_sum(x: "Tensor", a: "Tensor", b: "Tensor", *, beta: float = 1, alpha: float = 1) -> "Tensor":
    """Compute aten::addmm: beta x + alpha a b."""
    import torch

    if a.dtype != torch.float32 or beta != 1 or alpha != 1:
        return torch.addmm(x, a, b, beta=beta, alpha=alpha, out=a.new_empty(a.shape[0], b.shape[1]))
    return _product(a, b).add_(x)
