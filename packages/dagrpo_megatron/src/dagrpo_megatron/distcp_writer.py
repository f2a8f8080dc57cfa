"""Plan of a `torch_dist` checkpoint's files.

Tensors are written one by one to `.distcp` files, their places to `.metadata`. The bytes are those that
torch.distributed.checkpoint's FileSystemWriter gives a tensor (torch.save). That class itself is not used because it writes a
random identifier and the temporary folder's name, so that equal weights would give unequal files.
"""

import io
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.serialization import get_crc32_options, set_crc32_options, skip_data

from dagrpo.checkpoints.file_plan import PlannedFile, planned_content
from dagrpo.checkpoints.tensors import raw_bytes
from dagrpo.core.errors import UserError
from dagrpo.utils.files import json_text
from dagrpo_megatron.layout import Piece, Sizes

METADATA = ".metadata"
_ALIGNMENT = 64  # torch aligns values to it inside an item; items that begin at it can be mapped in place
_BACKEND = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
# Megatron reorders the query, key and value of a checkpoint that states no version, or one below 3.
_COMMON = {"checkpoint_version": 3.0, "iteration": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """Output of torch.save for a tensor: its values, and the bytes before and after them. An object has no values."""

    before: bytes
    values: Callable[[], Tensor] | None = None
    after: bytes = b""

    def write(self, file: BinaryIO) -> None:
        file.write(self.before)
        if self.values is not None:
            file.write(raw_bytes(self.values()))
        file.write(self.after)


@dataclass(slots=True)
class _DistcpFile:
    """Items of a file, and their size in bytes."""

    items: list[_Item] = field(default_factory=list)
    bytes: int = 0

    def write(self, file: BinaryIO) -> None:
        for item in self.items:
            item.write(file)


class DistcpPlan:
    """Plan that takes boxes of tensors and objects in any order; `files` are those of the resulting folder.

    A file ends when the next tensor would take it beyond `max_file_bytes`.
    """

    def __init__(self, folder: str, max_file_bytes: int) -> None:
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._files: list[_DistcpFile] = []
        self._described: dict[str, STORAGE_TYPES] = {}
        self._stored: dict[MetadataIndex, _StorageInfo] = {}

    def add(self, piece: Piece, dtype: torch.dtype, values: Callable[[], Tensor]) -> None:
        """Store one box of a Megatron tensor; `values` reads it. Raises UserError if other boxes of it have another type."""
        if piece.key not in self._described:
            self._described[piece.key] = _described(piece.size, dtype)
        described = self._described[piece.key]
        assert isinstance(described, TensorStorageMetadata)
        if described.properties.dtype != dtype:
            raise UserError(
                f"{piece.names[0]} is in {dtype}, but other tensors of {piece.key} are in "
                f"{described.properties.dtype}: convert the checkpoint to one type first."
            )
        before, after = _around_values(dtype, piece.sizes)
        offsets, sizes = torch.Size(piece.offsets), torch.Size(piece.sizes)
        place = self._append(_Item(before=before, values=values, after=after), sizes.numel() * dtype.itemsize)
        described.chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=sizes))
        self._stored[MetadataIndex(piece.key, offsets)] = place

    def add_absent_objects(self, names: Iterable[str]) -> None:
        """Add objects that a loader asks for although they are empty: all share one copy."""
        with _without_checksums():
            place = self._append(_Item(before=_saved([None])), 0)
        for name in names:
            self._described[name] = BytesStorageMetadata()
            self._stored[MetadataIndex(name)] = place

    def files(self) -> list[PlannedFile]:
        """Return all files of the folder, the index `.metadata` last."""
        whole = Metadata(state_dict_metadata=self._described, storage_data=self._stored)
        return [
            *(
                PlannedFile(name=f"{self._folder}/__0_{number}.distcp", bytes=file.bytes, write=file.write)
                for number, file in enumerate(self._files)
            ),
            planned_content(f"{self._folder}/common.pt", _saved(_COMMON)),
            planned_content(f"{self._folder}/metadata.json", json_text(_BACKEND).encode()),
            planned_content(f"{self._folder}/{METADATA}", _pickled(whole)),
        ]

    def _append(self, item: _Item, size: int) -> _StorageInfo:
        """Append an item to a file with room for it. `size`: of the values, in bytes."""
        if not self._files or self._files[-1].bytes + size > self._max_file_bytes:
            self._files.append(_DistcpFile())
        file = self._files[-1]
        start, length = file.bytes, len(item.before) + size + len(item.after)
        padding = -length % _ALIGNMENT
        file.items += [item, _Item(before=b"\0" * padding)]
        file.bytes += length + padding
        return _StorageInfo(relative_path=f"__0_{len(self._files) - 1}.distcp", offset=start, length=length)


class _Pickler(pickle.Pickler):
    """Pickler that writes enumeration members by value: Python's own form differs from version to version."""

    def reducer_override(self, value: Any) -> Any:
        return (type(value), (value.value,)) if isinstance(value, Enum) else NotImplemented


def _pickled(value: object) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=4).dump(value)
    return file.getvalue()


@cache
def _around_values(dtype: torch.dtype, sizes: Sizes) -> tuple[bytes, bytes]:
    """Return the bytes that torch.save writes before and after a tensor's values; they depend on its type and shape alone.

    torch writes a file with a hole in place of the values, so that no memory or disk of their size is needed.
    """
    with tempfile.TemporaryDirectory() as folder, _without_checksums(), skip_data():
        path = Path(folder) / "archive"  # torch puts this name into the file; it is the one of a stream
        values = torch.empty(sizes, dtype=dtype)
        torch.save(values, path)
        reader: Any = torch._C.PyTorchFileReader(str(path))
        start = reader.get_record_offset("data/0")
        with path.open("rb") as file:
            before = file.read(start)
            file.seek(start + values.nbytes)
            return before, file.read()


def _saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@contextmanager
def _without_checksums() -> Iterator[None]:
    """Disable torch.save's crc32 of all values, which halves its speed and which no loader of torch checks."""
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def _described(size: Sizes, dtype: torch.dtype) -> TensorStorageMetadata:
    return TensorStorageMetadata(properties=TensorProperties(dtype=dtype), size=torch.Size(size), chunks=[])
