"""A made-up CUDA device: fake tensors in the CPU build of torch.

What it does to torch cannot be undone, so it belongs in a process of its own.
"""

import ctypes
import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

NO_KERNEL = frozenset(
    {
        "view",
        "_unsafe_view",
        "t",
        "transpose",
        "permute",
        "slice",
        "select",
        "expand",
        "unsqueeze",
        "squeeze",
        "detach",
        "alias",
        "split",
        "split_with_sizes",
        "as_strided",
        "reshape",
        "lift_fresh",
        "empty",
        "empty_like",
        "new_empty",
        "empty_strided",
        "unbind",
        "_reshape_alias",
        "resize_",
        "unfold",
        "diagonal",
        "narrow",
        "is_same_size",
        "device",
        "sym_size",
        "sym_stride",
        "sym_numel",
    }
)
WAITS = frozenset(
    {
        "_local_scalar_dense",
        "nonzero",
        "is_nonzero",
        "equal",
        "unique_consecutive",
        "_unique2",
        "masked_select",
        "repeat_interleave",
    }
)
MOST_KNOWN = 1 << 16  # numbers of a tensor whose values are known
COLLECTIVES = {
    "_allgather_base_": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "all_reduce": "all-reduce",
    "allreduce_": "all-reduce",
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


def counting() -> Any:
    """Return a mode that computes what is on the made-up device by shape alone, and counts it."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.distributed._tools import fake_collectives  # noqa: F401  # collectives of fake tensors
    from torch.distributed.tensor import DTensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map
    from torch.utils.weak import WeakIdKeyDictionary

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.fake = FakeTensorMode(allow_non_fake_inputs=True)
            self._values: Any = WeakIdKeyDictionary()  # of tensors on the device that follow from the CPU's alone
            self.reset()

        def reset(self) -> None:
            self.kernels = Counter[str]()
            self.waits = Counter[str]()
            self.products = Counter[str]()  # FLOPs by type
            self.attention = Counter[str]()  # calls by operation
            self.collectives = Counter[str]()  # calls by operation and type
            self.whole = Counter[str]()  # bytes of the whole tensors of these calls

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if any(issubclass(each, DTensor) for each in types):
                return NotImplemented  # it calls the operations on its own part
            inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
            is_on_device = any(isinstance(each, FakeTensor) for each in inputs)
            if not is_on_device and torch.device(kwargs.get("device") or "cpu").type != "cuda":
                return function(*args, **kwargs)
            if any(isinstance(each, FakeTensor) and each.fake_mode is not self.fake for each in inputs):
                return function(*args, **kwargs)  # of a DTensor, which looks for the shape of a result
            name = function.overloadpacket.__name__
            if name == "_local_scalar_dense":
                self.waits[name] += 1
                value = self._values.get(inputs[0])
                return (1.0 if inputs[0].dtype.is_floating_point else 1) if value is None else value.item()
            if name == "is_nonzero":
                self.waits[name] += 1
                return True
            if name in ("index", "index_put_"):
                args = (args[0], [place for each in args[1] for place in self._places(each)], *args[2:])
                inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
            values = self._computed(function, inputs, args, kwargs)
            with self.fake:
                args, kwargs = tree_map(_shape_alone, (args, kwargs))
                if torch.Tag.dynamic_output_shape in function.tags and values is not None:
                    out = tree_map(lambda each: torch.empty_like(each, device="cuda"), values)
                else:
                    out = function(*args, **kwargs)
            self._count(name, args, out)
            if isinstance(out, torch.Tensor) and out.device.type == "cpu":
                self.waits[f"{name} to the CPU"] += 1
                # Where values are not known, 0 numbers are not finite.
                return torch.zeros(out.shape, dtype=out.dtype) if values is None else values
            made = [] if values is None else tree_leaves(out)
            for each, value in zip(made, tree_leaves(values), strict=values is not None):
                if isinstance(each, torch.Tensor):
                    self._values[each] = value
            return out

        def _places(self, index: Any) -> list[Any]:
            """What indexes in the stead of a mask, as a device makes it: it waits for how many places there are."""
            if index is None or index.dtype != torch.bool or self._values.get(index) is None:
                return [index]
            with self:
                return list(index.nonzero().unbind(1))

        def _computed(self, function: Any, inputs: list[Any], args: Any, kwargs: Any) -> Any:
            """What an operation returns, on the CPU, where the values of all that it reads are known; else None."""
            known = [self._values.get(each) if isinstance(each, FakeTensor) else each for each in inputs]
            is_small = all(value is not None and value.numel() <= MOST_KNOWN for value in known)
            if not is_small or (not known and "empty" in str(function)):
                for each in inputs[:1] if function._schema.is_mutable else ():
                    self._values.pop(each, None)
                return None
            args, kwargs = tree_map(
                lambda each: self._values.get(each, each) if isinstance(each, torch.Tensor) else each, (args, kwargs)
            )
            return function(*args, **kwargs | ({"device": "cpu"} if kwargs.get("device") is not None else {}))

        def _count(self, name: str, args: Any, out: Any) -> None:
            if name in WAITS:
                self.waits[name] += 1
            if name in NO_KERNEL:
                return
            self.kernels[name] += 1
            if name in COLLECTIVES:
                tensors = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor)]
                kind = f"{COLLECTIVES[name]} {str(tensors[0].dtype).removeprefix('torch.')}"
                self.collectives[kind] += 1
                self.whole[kind] += max(each.nbytes for each in tensors)
            if name in ("mm", "bmm", "addmm", "addmm_"):
                left, right = args[1:3] if name.startswith("addmm") else args[:2]
                self.products[str(out.dtype).removeprefix("torch.")] += 2 * left.numel() * right.shape[-1]
            elif "attn" in name or "attention" in name:
                self.attention[name] += 1

    def _shape_alone(each: Any) -> Any:
        is_real = isinstance(each, torch.Tensor) and not isinstance(each, FakeTensor)
        return torch.empty(each.shape, dtype=each.dtype) if is_real else each

    return Counting()
