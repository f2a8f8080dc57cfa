"""Kernels, products, bytes and memory of an update without values."""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

READ_IN_PART = {"embedding", "gather", "index", "index_select"}  # of what they read as much as they return
CHANGED_IN_PART = {"index_put_"}  # of what they change as much as they are given
OVERWRITTEN = {"copy_", "fill_", "zero_"}  # what they change is not read
LONGEST, BACKWARD_LONGEST = 6, 9  # places of max_k among the inputs of varlen_attn and of its backward pass
BACKWARD = 2.5  # products of attention backward, in those of a forward pass
CAUSAL_SHARE = 0.5  # of the products of attention: kernels leave out most of what a causal mask excludes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One launch on a device."""

    name: str
    dtype: torch.dtype  # of its result
    flops: int  # of products of matrices, and of attention
    bytes: int  # read and written

    @property
    def attends(self) -> bool:
        """Return True if the kernel is attention."""
        return "attn" in self.name or "attention" in self.name


class Counting(TorchDispatchMode):
    """Counter of the kernels of one device, and of the bytes of tensors that are alive there at the same time.

    On the meta device nothing is computed: a number that is read there is 1, and a condition is false.
    """

    def __init__(self, device: str = "meta") -> None:
        """Count the kernels of devices of type `device`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}  # storages by address: their number, and themselves
        self._number = count(1)
        self._read: dict[int, int] = {}  # bytes of storages that the open chain reads, and has not made
        self._created: dict[int, int] = {}  # the same of those that it has made
        self.kernels = Counter[Kernel]()
        # With each chain of kernels between two products in the place of its parts, as a compiler joins them.
        self.joined = Counter[Kernel]()
        self.bytes = 0  # alive now
        self.peak = 0  # alive at most
        self.peak_before = 0  # the peak until `split` was called last
        # Both peaks, kernels and joined ones, when a backward pass has ended.
        self.marked: tuple[int, int, Counter[Kernel], Counter[Kernel]] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, and count it if its result is on the device."""
        with torch._C.DisableTorchFunction():  # tensors say which device they are really on
            return self._called(func, args, kwargs or {})

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        inputs = [*_tensors((*args, *kwargs.values()))]
        without = self._device == "meta" and any(each.is_meta for each in inputs)
        out = _without_values(func, inputs, args, kwargs) if without else func(*args, **kwargs)
        outputs = [each for each in _tensors((out,)) if each.device.type == self._device]
        before = {_key(each) for each in inputs}
        created = [each for each in outputs if _key(each) not in before]
        for each in created:
            self._keep(each)
        name = func.overloadpacket.__name__
        launches = bool(created) or func._schema.is_mutable
        if outputs and launches and not func.is_view and "empty" not in name:
            self._launch(_kernel(func, name, inputs, outputs, args, kwargs), inputs, created)
        return out

    def start(self) -> None:
        """Start to count; tensors that are alive remain in `bytes`."""
        self.kernels.clear()
        self.joined.clear()
        self.peak, self.peak_before = self.bytes, self.bytes

    def mark(self) -> None:
        """Record the counts so far: the backward pass has ended."""
        self._close(torch.float32)
        self.marked = self.peak_before, self.peak, self.kernels.copy(), self.joined.copy()

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

        self._alive[key] = next(self._number), weakref.ref(storage, free)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

    def _launch(self, kernel: Kernel, inputs: Sequence[Tensor], created: Sequence[Tensor]) -> None:
        self.kernels[kernel] += 1
        if kernel.flops:
            self._close(kernel.dtype)
            self.joined[kernel] += 1
            return
        for each in inputs:
            if (number := self._numbered(each)) not in self._created:
                self._read[number] = min(each.untyped_storage().nbytes(), kernel.bytes)
        self._created |= {self._numbered(each): each.untyped_storage().nbytes() for each in created}

    def _numbered(self, tensor: Tensor) -> int:
        """Return a key that distinguishes a storage from earlier ones at its address; of one from before the start, the address."""
        key = _key(tensor)
        return self._alive[key][0] if key in self._alive else -key

    def _close(self, dtype: torch.dtype) -> None:
        """End a chain of kernels without a product: it reads what came from outside, and writes what is still alive."""
        alive = {number for number, _ in self._alive.values()}
        written_bytes = sum(size for number, size in self._created.items() if number in alive)
        if self._read or self._created:
            size = written_bytes + sum(self._read.values())
            self.joined[Kernel(name="joined", dtype=dtype, flops=0, bytes=size)] += 1
        self._read, self._created = {}, {}


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


def _kernel(
    func: Any, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], args: Any, kwargs: Any
) -> Kernel:
    return Kernel(
        name=name,
        dtype=outputs[0].dtype,
        flops=_flops(func, name, args, kwargs, outputs),
        bytes=_bytes(name, inputs, outputs, kwargs),
    )


def _bytes(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], kwargs: Any) -> int:
    """Return the bytes that are read and written, without savings by a cache."""
    output_bytes = sum(map(_size, outputs))
    if name in CHANGED_IN_PART:
        return 2 * sum(map(_size, inputs[1:]))
    read = [each for each in inputs[name in OVERWRITTEN :] if each is not kwargs.get("out")]
    if name in READ_IN_PART:
        return output_bytes + sum(min(_size(each), output_bytes) for each in read)
    return output_bytes + sum(map(_size, read))


def _size(tensor: Tensor) -> int:
    """Return the bytes of a tensor; of an expanded one, the bytes in memory."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def _flops(func: Any, name: str, args: Any, kwargs: Any, outputs: Sequence[Tensor]) -> int:
    """Return the FLOPs of products, by torch's formulas, and of attention to a token's own sequence."""
    if "attn" in name or "attention" in name:
        is_backward = "backward" in name
        query, key = args[is_backward : is_backward + 2]
        seen = args[BACKWARD_LONGEST if is_backward else LONGEST] if "varlen" in name else key.shape[-2]
        return int(CAUSAL_SHARE * (BACKWARD if is_backward else 1) * 4 * query.numel() * seen)
    formula = flop_registry.get(torch.ops.aten.addmm if name == "addmm_" else func.overloadpacket)
    if formula is None:
        return 0
    return int(formula(*args, **kwargs, out_val=outputs[0] if len(outputs) == 1 else tuple(outputs)))
