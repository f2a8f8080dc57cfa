"""The kind of device on which this process and its servers compute."""

import os
from typing import Final, Literal

from dagrpo.core.errors import UserError

Kind = Literal["cpu", "cuda", "npu"]
NPU: Final = "npu"  # of Ascend
VARIABLE = "DAGRPO_DEVICE"  # of this process, and of those that it starts
# Each has gloo for what is on the CPU.
COLLECTIVES = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", NPU: "cpu:gloo,npu:hccl"}


def choose(device: Literal["npu"] | None) -> None:
    """Set the device of this process and its children; None: a GPU if torch finds one, else the CPU."""
    if device is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = device


def kind() -> Kind:
    """Return the kind. Raises UserError for NPUs that torch cannot use."""
    import torch  # slow to import

    if os.environ.get(VARIABLE) == NPU:
        _require_npus()
        return NPU
    return "cuda" if torch.cuda.is_available() else "cpu"


def _require_npus() -> None:
    import torch

    remedy = "install the one of this torch, with its CANN, or set runtime.device to null"
    try:
        import torch_npu  # type: ignore[import-not-found] # noqa: F401 - adds torch.npu
    except (ImportError, OSError) as error:
        raise UserError(f"runtime.device is npu, but torch_npu cannot be imported ({error}): {remedy}") from error
    if not torch.get_device_module(NPU).is_available():
        raise UserError(f"runtime.device is npu, but torch_npu finds no NPU: {remedy}")
