"""Safe reader of the two pickles of a `torch_dist` checkpoint.

`.metadata` and the header of each stored tensor are pickles by torch's definition. A pickle may name any callable of
the installed packages; here it may name only the plain classes below, and every other name is refused. `common.pt`,
the third pickle, holds training arguments and is never opened.
"""

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PosixPath, PurePosixPath
from typing import IO, Any, TypeVar

import torch
from torch.distributed.checkpoint import filesystem, metadata, planner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from dagrpo.checkpoints.tensors import TensorSpec
from dagrpo.core.errors import UserError

Kind = TypeVar("Kind")

_METADATA_CLASSES = (
    metadata.Metadata,
    metadata.MetadataIndex,
    metadata.StorageMeta,
    metadata.TensorProperties,
    metadata.TensorStorageMetadata,
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata._MEM_FORMAT_ENCODING,
    filesystem._StorageInfo,
    planner.SavePlan,  # megatron-core keeps the plans of all ranks
    planner.WriteItem,
    planner.WriteItemType,
    planner.TensorWriteData,
    OrderedDict,
    PosixPath,
    PurePosixPath,
    torch.Size,
)
_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """Header in the pickle of a stored tensor. Offset and strides count elements; `record` names its bytes."""

    dtype: torch.dtype
    record: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Location of an item: bytes from the beginning of a file of the folder."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Whole tensor, with the sizes and places of its chunks by the offsets at which they begin."""

    spec: TensorSpec
    chunks: dict[tuple[int, ...], tuple[tuple[int, ...], Place]]


class _ForeignName(Exception):
    """Error for a pickle that names anything but the allowed names."""


class _Restricted(pickle.Unpickler):
    """Unpickler that resolves the names of one table."""

    def __init__(self, file: IO[bytes], allowed: dict[str, Any]) -> None:
        super().__init__(file)
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        found = self._allowed.get(f"{module}.{name}")
        if found is None:
            raise _ForeignName("it names " + f"{module}.{name}".encode("unicode_escape").decode())
        return found

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, key, *_ = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise _ForeignName("it refers to something other than a tensor's values")
        return dtype, str(key)


def read_metadata(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors that a `.metadata` describes. Raises UserError if it is missing, damaged, or names a class that is not allowed."""
    allowed: dict[str, Any] = {f"{kind.__module__}.{kind.__name__}": kind for kind in _METADATA_CLASSES}
    allowed |= {str(dtype): dtype for dtype in _DTYPES.values()}
    allowed["torch.serialization._get_layout"] = lambda name: torch.strided
    # Python 3.13 pickles paths under another module, and 3.11.0 to 3.11.4 members of an enumeration by their names.
    allowed |= {"pathlib._local.PosixPath": PosixPath, "builtins.getattr": _member}
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} is missing: give the folder of a whole torch_dist checkpoint.") from None
    return _loaded(content, allowed, str(path), _stored_tensors)


def _member(owner: Any, name: Any) -> Enum:
    """Return an enumeration member in the place of the pickle's call of getattr."""
    if not (isinstance(owner, type) and issubclass(owner, Enum)) or name not in owner.__members__:
        raise _ForeignName("it asks for an attribute")
    return owner.__members__[name]


def _stored_tensors(found: Any) -> dict[str, StoredTensor]:
    """Return the needed parts of torch's objects, whose attributes a damaged file may have left out or replaced."""
    return {
        str(key): StoredTensor(
            spec=TensorSpec(dtype=_checked(torch.dtype, stored.properties.dtype), shape=_sizes(stored.size)),
            chunks={
                _sizes(chunk.offsets): (
                    _sizes(chunk.sizes),
                    _place(found.storage_data[MetadataIndex(key, chunk.offsets)]),
                )
                for chunk in stored.chunks
            },
        )
        for key, stored in _checked(Metadata, found).state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata)
    }


def _place(info: Any) -> Place:
    return Place(
        file=_checked(str, info.relative_path), offset=_checked(int, info.offset), length=_checked(int, info.length)
    )


def _sizes(sizes: Any) -> tuple[int, ...]:
    return tuple(_checked(int, size) for size in sizes)


def _checked(kind: type[Kind], value: Any) -> Kind:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value


def read_header(pickled: bytes, where: str) -> TensorHeader:
    """Return the header of a tensor that torch.save wrote. Raises UserError for other contents."""
    allowed: dict[str, Any] = {f"torch.{name}": dtype for name, dtype in _DTYPES.items()}
    allowed |= {"torch._utils._rebuild_tensor_v2": _rebuild, "collections.OrderedDict": OrderedDict}
    return _loaded(pickled, allowed, where, _header)


def _header(found: Any) -> TensorHeader:
    (dtype, record), offset, shape, strides = _checked(_Rebuilt, found).arguments
    return TensorHeader(
        dtype=_checked(torch.dtype, dtype),
        record=_checked(str, record),
        offset=_checked(int, offset),
        shape=_sizes(shape),
        strides=_sizes(strides),
    )


@dataclass(frozen=True, slots=True)
class _Rebuilt:
    arguments: tuple[Any, ...]


def _rebuild(storage: Any, offset: int, shape: Any, strides: Any, *others: Any) -> _Rebuilt:
    """Record the arguments in the place of the pickle's call of torch._utils._rebuild_tensor_v2."""
    return _Rebuilt((storage, offset, shape, strides))


def _loaded(content: bytes, allowed: dict[str, Any], where: str, then: Callable[[Any], Kind]) -> Kind:
    try:
        return then(_Restricted(io.BytesIO(content), allowed).load())
    except _ForeignName as error:
        raise UserError(f"{where} is a pickle that is not read ({error}): do not use this checkpoint.") from None
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises anything
        raise UserError(
            f"{where} is truncated or damaged ({type(error).__name__}): copy or make that checkpoint again."
        ) from None
