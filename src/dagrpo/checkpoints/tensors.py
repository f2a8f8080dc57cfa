"""Named tensors read one at a time, from memory or files.

A 30 GB checkpoint passes through here with one tensor in memory. Unlike a state dict, nothing is kept after it was read.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# The types that params.yaml may name.
NAMED_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Type and shape of a tensor, without its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.numel * self.dtype.itemsize


class Tensors(Protocol):
    """Tensors by name: `specs` is cheap, `read` brings one tensor into memory."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]: ...

    def read(self, name: str) -> Tensor: ...


class StateTensors:
    """The tensors of a state dict that is in memory, or mapped from a file."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state
        self.specs = {name: TensorSpec(dtype=t.dtype, shape=tuple(t.shape)) for name, t in state.items()}

    def read(self, name: str) -> Tensor:
        return self._state[name]


class CastTensors:
    """A view of other tensors with floating point ones cast to `dtype`; integers stay as they are."""

    def __init__(self, tensors: Tensors, dtype: torch.dtype) -> None:
        self._tensors = tensors
        self.specs = {
            name: TensorSpec(dtype=dtype if spec.dtype.is_floating_point else spec.dtype, shape=spec.shape)
            for name, spec in tensors.specs.items()
        }

    def read(self, name: str) -> Tensor:
        return self._tensors.read(name).to(self.specs[name].dtype)


class SomeTensors:
    """The subset of other tensors that `names` lists."""

    def __init__(self, tensors: Tensors, names: list[str]) -> None:
        self._tensors = tensors
        self.specs = {name: tensors.specs[name] for name in names}

    def read(self, name: str) -> Tensor:
        return self._tensors.read(name)


class JointTensors:
    """The union of two sets of tensors, which have no name in common."""

    def __init__(self, one: Tensors, other: Tensors) -> None:
        assert one.specs.keys().isdisjoint(other.specs), "a name stands for two tensors"
        self._one = one
        self._other = other
        self.specs = {**one.specs, **other.specs}

    def read(self, name: str) -> Tensor:
        return (self._one if name in self._one.specs else self._other).read(name)


def total_bytes(tensors: Tensors) -> int:
    """Return the bytes of all tensors on a disk."""
    return sum(spec.bytes for spec in tensors.specs.values())


def parameter_count(tensors: Tensors) -> int:
    """Count the numbers in all tensors; tied weights count once."""
    return sum(spec.numel for spec in tensors.specs.values())


def first_difference(ours: Tensors, theirs: Tensors) -> str | None:
    """Return the name of a tensor whose name, type, shape or bytes differ, or None."""
    for name in sorted(ours.specs.keys() | theirs.specs.keys()):
        if ours.specs.get(name) != theirs.specs.get(name) or not _same_bytes(ours.read(name), theirs.read(name)):
            return name
    return None


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    """Compare tensors as integers, since NaN is not equal to itself; as 64-bit ones if size and offset allow it."""
    first, second = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    if all(values.numel() % 8 == 0 and values.storage_offset() % 8 == 0 for values in (first, second)):
        first, second = first.view(torch.int64), second.view(torch.int64)
    return torch.equal(first, second)


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return the values of a tensor in row-major order, without a copy if possible."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def dtype_name(dtype: torch.dtype) -> str:
    """Return a type's name as in params.yaml and config.json: `float32`."""
    return str(dtype).removeprefix("torch.")
