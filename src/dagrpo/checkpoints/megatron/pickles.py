"""The two pickles of a `torch_dist` checkpoint, read without letting them run anything.

`.metadata` and the header of each stored tensor are pickles by torch's definition. A pickle may name any callable of
the installed packages; here it may name only the plain classes below, and every other name is refused. `common.pt`,
the third pickle, holds training arguments and is never opened.
"""

import io
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path, PosixPath, PurePosixPath
from typing import IO, Any

import torch
from torch.distributed.checkpoint import filesystem, metadata, planner
from torch.distributed.checkpoint.metadata import Metadata

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
    """What the pickle of a stored tensor says. Offset and strides count elements; `record` names its bytes."""

    dtype: torch.dtype
    record: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Restricted(pickle.Unpickler):
    """An unpickler that resolves the names of one table."""

    def __init__(self, file: IO[bytes], allowed: dict[str, Any]) -> None:
        super().__init__(file)
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        found = self._allowed.get(f"{module}.{name}")
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return found

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, key, *_ = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise pickle.UnpicklingError("it refers to something other than a tensor's values")
        return dtype, str(key)


def read_metadata(path: Path) -> Metadata:
    """The `.metadata` of a checkpoint. ValueError: it is missing, damaged, or names a class that it has no need of."""
    allowed: dict[str, Any] = {f"{kind.__module__}.{kind.__name__}": kind for kind in _METADATA_CLASSES}
    allowed |= {str(dtype): dtype for dtype in _DTYPES.values()}
    allowed["torch.serialization._get_layout"] = lambda name: torch.strided
    # Python 3.13 pickles paths under another module.
    allowed |= {"pathlib._local.PosixPath": PosixPath}
    try:
        with path.open("rb") as file:
            found = _loaded(file, allowed, str(path))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: give the folder of a whole torch_dist checkpoint.") from None
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise ValueError(f"{path} does not describe a torch_dist checkpoint: copy or make that checkpoint again.")
    return found


def read_header(pickled: bytes, where: str) -> TensorHeader:
    """The header of a tensor that torch.save wrote. ValueError: it is something else."""
    allowed: dict[str, Any] = {f"torch.{name}": dtype for name, dtype in _DTYPES.items()}
    allowed |= {"torch._utils._rebuild_tensor_v2": _rebuild, "collections.OrderedDict": OrderedDict}
    header = _loaded(io.BytesIO(pickled), allowed, where)
    if not isinstance(header, _Rebuilt):
        raise ValueError(f"{where} is not a plain tensor: copy or make that checkpoint again.")
    (dtype, record), offset, shape, strides = header.arguments
    return TensorHeader(dtype=dtype, record=record, offset=offset, shape=tuple(shape), strides=tuple(strides))


@dataclass(frozen=True, slots=True)
class _Rebuilt:
    arguments: tuple[Any, ...]


def _rebuild(storage: Any, offset: int, shape: Any, strides: Any, *others: Any) -> _Rebuilt:
    """Stands where the pickle would call torch._utils._rebuild_tensor_v2."""
    return _Rebuilt((storage, offset, shape, strides))


def _loaded(file: IO[bytes], allowed: dict[str, Any], where: str) -> Any:
    try:
        return _Restricted(file, allowed).load()
    except pickle.UnpicklingError as error:
        raise ValueError(f"{where} is a pickle that is not read ({error}): do not use this checkpoint.") from None
    except (EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{where} is truncated or damaged ({type(error).__name__}): copy or make that checkpoint again."
        ) from None
