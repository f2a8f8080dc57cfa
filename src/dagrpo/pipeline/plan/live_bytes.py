"""The peak of live tensors during an update without values."""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


class LiveBytes(TorchDispatchMode):
    """Adds up the bytes of the tensors that are alive on one device at the same time.

    On the meta device nothing is computed: a number that is read there is 1, and a condition is false.
    """

    def __init__(self, device: str = "meta") -> None:
        """Count tensors of devices of type `device`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._alive: dict[int, weakref.ref[Any]] = {}  # storages by address
        self.bytes = 0  # alive now
        self.peak = 0  # alive at most, since `start` or `split`
        self.peak_before = 0  # the peak until `split` was called last

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, and count the storages that it makes on the device."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():  # tensors say which device they are really on
            inputs = [*_tensors((*args, *kwargs.values()))]
            without = self._device == "meta" and any(each.is_meta for each in inputs)
            out = _without_values(func, inputs, args, kwargs) if without else func(*args, **kwargs)
            before = {_key(each) for each in inputs}
            for each in _tensors((out,)):
                if each.device.type == self._device and _key(each) not in before:
                    self._keep(each)
            return out

    def start(self) -> None:
        """Start to count; tensors that are alive remain in `bytes`."""
        self.peak, self.peak_before = self.bytes, self.bytes

    def split(self) -> None:
        """Count the peak from here on separately."""
        self.peak_before, self.peak = max(self.peak_before, self.peak), self.bytes

    def _keep(self, tensor: Tensor) -> None:
        """Count a storage until it is freed."""
        storage, key = tensor.untyped_storage(), _key(tensor)
        if key in self._alive:
            return
        size = storage.nbytes()

        def free(_: object) -> None:
            self.bytes -= size
            del self._alive[key]

        self._alive[key] = weakref.ref(storage, free)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments or results of an operation, and in their lists."""
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _without_values(func: Any, inputs: Sequence[Tensor], args: Any, kwargs: Any) -> Any:
    """Call an operation on the meta device, for which tensors of the CPU lose their values."""
    name = func.overloadpacket.__name__
    if name in ("_local_scalar_dense", "is_nonzero"):
        return 1.0 if inputs[0].dtype.is_floating_point else 0
    if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu":
        return torch.zeros(inputs[0].shape, dtype=kwargs.get("dtype") or inputs[0].dtype)
    if name == "bincount":  # it has no meta kernel, and the length of its result depends on values: a short one
        return inputs[0].new_empty(1, dtype=torch.int64)
    if not all(each.is_meta for each in inputs):
        args, kwargs = tree_map(_without_value, (args, kwargs))
    return func(*args, **kwargs)


def _without_value(each: Any) -> Any:
    return each.to("meta") if isinstance(each, Tensor) and each.dim() else each
