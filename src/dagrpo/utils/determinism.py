"""Deterministic computation: the same bits on the same device.

A GPU needs more for that than a CPU. The backward pass of torch's attention adds up in any order there, unless torch is strict: with
warn_only it warns once, and adds up in any order all the same. And cuBLAS must be given workspaces of a fixed size before it is first
used (https://docs.pytorch.org/docs/stable/notes/randomness.html). The engine has a separate flag.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dagrpo.core.errors import UserError

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED = ":4096:8"  # eight workspaces of 4 MiB: what cuBLAS takes on an H100 anyway
# Else NCCL chooses by the machine and the size of a message, and each choice adds up in another order
# (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html). All of its collectives have this one.
COLLECTIVES = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
_REFUSED = "does not have a deterministic implementation"


def compute_deterministically(on: bool) -> None:
    """Switch determinism on or off for this process, before it computes. `on`: rollout.deterministic."""
    if on:
        os.environ.setdefault(WORKSPACE, FIXED)
    torch.use_deterministic_algorithms(on)
    # Else torch would fill all new memory with NaN first, which takes time and changes nothing that was written before it is read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def add_up_in_one_order() -> None:
    """Fix NCCL's algorithm and protocol for this process, before its communicators are created. The user's choices are kept."""
    for name, value in COLLECTIVES.items():
        os.environ.setdefault(name, value)


@contextmanager
def explained() -> Iterator[None]:
    """Raise UserError inside the block for an operation that torch refuses because it has no deterministic form on this device."""
    try:
        yield
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
        operation = str(error).partition(_REFUSED)[0].strip()
        raise UserError(
            f"rollout.deterministic is true, and {operation} has no deterministic form on this device: set it to false."
        ) from error
