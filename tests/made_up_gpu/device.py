"""A made-up CUDA device: fake tensors in the CPU build of torch.

What it does to torch cannot be undone, so it belongs in a process of its own.
"""

import ctypes
import importlib.util
from pathlib import Path
from typing import Any
from unittest import mock

CASES: dict[str, dict[str, Any]] = {
    "packed": {},
    "packed, four layers": {"layers": 4},
    "packed, micro-batches of one": {"micro_batch": 1},
    "packed float16": {"dtype": "float16"},
    "packed float32": {"dtype": "float32"},
    "padded": {"layout": "padded"},
    "padded float16": {"layout": "padded", "dtype": "float16"},
    "padded float32": {"layout": "padded", "dtype": "float32"},
    "lora": {"rank": 8},
    "recomputed": {"recomputed": True},
    "head in chunks": {"chunk": 32},
    "two ranks": {"ranks": 2},
    "two ranks, micro-batches of one": {"ranks": 2, "micro_batch": 1},
    "two ranks, each micro-batch reduced": {"ranks": 2, "micro_batch": 1, "reduction": "each_micro_batch"},
}


def load_guard(library: Path) -> None:
    """Load the compiled guard.cpp. It has to happen before torch is imported, which looks for a device once."""
    origin = importlib.util.find_spec("torch")
    assert origin is not None
    assert origin.origin is not None
    for name in ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(Path(origin.origin).parent / "lib" / name), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library))


def pretend() -> None:
    """Make torch say that it has one H100."""
    import torch
    from torch.utils._pytree import tree_map

    card = mock.Mock(major=9, minor=0, total_memory=80 << 30, multi_processor_count=132)
    card.name = "NVIDIA H100 80GB HBM3"
    own = torch.tensor

    def on_device(data: Any, **options: Any) -> Any:  # torch makes these without asking a mode
        device = options.pop("device", None)
        if isinstance(data, list):
            data = tree_map(lambda each: each.item() if isinstance(each, torch.Tensor) else each, data)
        return own(data, **options) if device is None else own(data, **options).to(device)

    def new(self: Any, data: Any, **options: Any) -> Any:
        return on_device(data, **{"dtype": self.dtype, "device": self.device} | options)

    setattr(torch, "tensor", on_device)  # noqa: B010  # an assignment would need an ignore from mypy
    setattr(torch.Tensor, "new_tensor", new)  # noqa: B010
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (9, 0),
        "get_device_properties": card,
        "get_device_name": card.name,
        "_lazy_init": None,
        "set_device": None,
        "synchronize": None,
        "is_initialized": True,
        "max_memory_allocated": 0,
        "max_memory_reserved": 0,
        "empty_cache": None,
        "is_current_stream_capturing": False,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, mock.Mock(return_value=answer))
    for name in ("Stream", "Event", "stream", "current_stream"):  # FSDP orders its copies by them
        setattr(torch.cuda, name, mock.MagicMock())
