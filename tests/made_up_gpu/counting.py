"""Counts of an update on the made-up device, which computes by shape alone."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools import fake_collectives  # noqa: F401  # collectives of fake tensors
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

NO_KERNEL = frozenset({
    "view", "_unsafe_view", "t", "transpose", "permute", "slice", "select", "expand", "unsqueeze", "squeeze",
    "detach", "alias", "split", "split_with_sizes", "as_strided", "reshape", "lift_fresh", "empty", "empty_like",
    "new_empty", "empty_strided", "unbind", "_reshape_alias", "resize_", "unfold", "diagonal", "narrow",
    "is_same_size", "device", "sym_size", "sym_stride", "sym_numel",
})  # fmt: skip
WAITS = frozenset({
    "_local_scalar_dense", "nonzero", "is_nonzero", "equal", "unique_consecutive", "_unique2", "masked_select",
    "repeat_interleave",
})  # fmt: skip
MOST_KNOWN = 1 << 16  # numbers of a tensor whose values are known
COLLECTIVES = {
    "_allgather_base_": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "all_reduce": "all-reduce",
    "allreduce_": "all-reduce",
}
PRODUCTS = ("mm", "bmm", "addmm", "addmm_")


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes what is on the made-up device by shape alone, and counts it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._values: Any = WeakIdKeyDictionary()  # of tensors on the device that follow from the CPU's alone
        self.reset()

    def reset(self) -> None:
        """Count from 0."""
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
        inputs = _tensors((args, kwargs))
        if not self._is_counted(inputs, kwargs):
            return function(*args, **kwargs)
        name = function.overloadpacket.__name__
        if name in ("_local_scalar_dense", "is_nonzero"):
            self.waits[name] += 1
            return name == "is_nonzero" or self._number(inputs[0])
        if name in ("index", "index_put_"):
            args = (args[0], [place for each in args[1] for place in self._places(each)], *args[2:])
            inputs = _tensors((args, kwargs))
        values = self._computed(function, inputs, args, kwargs)
        out = self._shaped(function, args, kwargs, values)
        self._count(name, args, out)
        if isinstance(out, Tensor) and out.device.type == "cpu":
            self.waits[f"{name} to the CPU"] += 1
            # Where values are not known, 0 numbers are not finite.
            return torch.zeros(out.shape, dtype=out.dtype) if values is None else values
        if values is not None:
            self._remember(out, values)
        return out

    def _is_counted(self, inputs: list[Tensor], kwargs: Any) -> bool:
        """Return True for an operation on the device. One of a DTensor looks for the shape of a result alone."""
        fakes = [each for each in inputs if isinstance(each, FakeTensor)]
        if not fakes:
            return torch.device(kwargs.get("device") or "cpu").type == "cuda"
        return all(each.fake_mode is self.fake for each in fakes)

    def _number(self, tensor: Tensor) -> Any:
        """Return a tensor's number; 1 if it is not known."""
        value = self._values.get(tensor)
        return (1.0 if tensor.dtype.is_floating_point else 1) if value is None else value.item()

    def _places(self, index: Any) -> list[Any]:
        """Return what indexes in the stead of a mask, as a device makes it: it waits for how many places there are."""
        if index is None or index.dtype != torch.bool or self._values.get(index) is None:
            return [index]
        with self:
            return list(index.nonzero().unbind(1))

    def _computed(self, function: Any, inputs: list[Any], args: Any, kwargs: Any) -> Any:
        """Return an operation's result on the CPU if the values of all that it reads are known, else None."""
        known = [self._values.get(each) if isinstance(each, FakeTensor) else each for each in inputs]
        is_small = all(value is not None and value.numel() <= MOST_KNOWN for value in known)
        if not is_small or (not known and "empty" in str(function)):
            for each in inputs[:1] if function._schema.is_mutable else ():
                self._values.pop(each, None)
            return None
        args, kwargs = tree_map(
            lambda each: self._values.get(each, each) if isinstance(each, Tensor) else each, (args, kwargs)
        )
        return function(*args, **kwargs | ({"device": "cpu"} if kwargs.get("device") is not None else {}))

    def _shaped(self, function: Any, args: Any, kwargs: Any, values: Any) -> Any:
        """Return an operation's result without values."""
        with self.fake:
            args, kwargs = tree_map(_shape_alone, (args, kwargs))
            if torch.Tag.dynamic_output_shape in function.tags and values is not None:
                return tree_map(lambda each: torch.empty_like(each, device="cuda"), values)
            return function(*args, **kwargs)

    def _remember(self, out: Any, values: Any) -> None:
        for each, value in zip(tree_leaves(out), tree_leaves(values), strict=True):
            if isinstance(each, Tensor):
                self._values[each] = value

    def _count(self, name: str, args: Any, out: Any) -> None:
        if name in WAITS:
            self.waits[name] += 1
        if name in NO_KERNEL:
            return
        self.kernels[name] += 1
        if name in COLLECTIVES:
            self._count_collective(COLLECTIVES[name], _tensors(args))
        elif name in PRODUCTS:
            left, right = args[1:3] if name.startswith("addmm") else args[:2]
            self.products[_type_of(out)] += 2 * left.numel() * right.shape[-1]
        elif "attn" in name or "attention" in name:
            self.attention[name] += 1

    def _count_collective(self, name: str, tensors: list[Tensor]) -> None:
        kind = f"{name} {_type_of(tensors[0])}"
        self.collectives[kind] += 1
        self.whole[kind] += max(each.nbytes for each in tensors)


def _tensors(tree: Any) -> list[Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]


def _type_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape_alone(each: Any) -> Any:
    is_real = isinstance(each, Tensor) and not isinstance(each, FakeTensor)
    return torch.empty(each.shape, dtype=each.dtype) if is_real else each
