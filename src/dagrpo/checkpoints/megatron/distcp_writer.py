"""Writes the files of a `torch_dist` checkpoint: tensors one by one into `.distcp` files, their places into `.metadata`.

The bytes are those that torch.distributed.checkpoint's FileSystemWriter gives a tensor (torch.save). That class itself
is not used because it writes a random identifier and the temporary folder's name, so that equal weights would give
unequal files.
"""

import io
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

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
from torch.serialization import get_crc32_options, set_crc32_options

from dagrpo.checkpoints.megatron.layout import Piece, Sizes
from dagrpo.files import write_json

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


class DistcpWriter:
    """Takes tensors and objects in any order; `finish` makes the folder a checkpoint.

    A file is closed when the next tensor would take it beyond `max_file_bytes`.
    """

    def __init__(self, folder: Path, max_file_bytes: int) -> None:
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._file: BinaryIO | None = None
        self._files = 0
        self._described: dict[str, STORAGE_TYPES] = {}
        self._stored: dict[MetadataIndex, _StorageInfo] = {}

    def __enter__(self) -> "DistcpWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def add(self, piece: Piece, tensor: Tensor) -> None:
        """Write one box of a Megatron tensor. ValueError: the other boxes of that tensor have another type."""
        described = self._described.setdefault(piece.key, _described(piece.size, tensor.dtype))
        assert isinstance(described, TensorStorageMetadata)
        if described.properties.dtype != tensor.dtype:
            raise ValueError(
                f"{piece.names[0]} is in {tensor.dtype}, but other tensors of {piece.key} are in "
                f"{described.properties.dtype}: convert the checkpoint to one type first."
            )
        offsets = torch.Size(piece.offsets)
        described.chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=torch.Size(piece.sizes)))
        self._stored[MetadataIndex(piece.key, offsets)] = self._append(tensor, tensor.nbytes)

    def add_absent_objects(self, names: Iterable[str]) -> None:
        """Objects that a loader asks for and that say nothing: all share one copy."""
        place = self._append([None], 0)
        for name in names:
            self._described[name] = BytesStorageMetadata()
            self._stored[MetadataIndex(name)] = place

    def finish(self) -> None:
        """Write what says where everything is."""
        self._close()
        whole = Metadata(state_dict_metadata=self._described, storage_data=self._stored)
        (self._folder / METADATA).write_bytes(pickle.dumps(whole, protocol=4))
        common = io.BytesIO()
        torch.save(_COMMON, common)
        (self._folder / "common.pt").write_bytes(common.getvalue())
        write_json(self._folder / "metadata.json", _BACKEND)

    def _append(self, value: object, size: int) -> _StorageInfo:
        file = self._room_for(size)
        start = file.tell()
        with _without_checksums():
            torch.save(value, file)
        end = file.tell()
        file.write(b"\0" * (-end % _ALIGNMENT))
        return _StorageInfo(relative_path=Path(file.name).name, offset=start, length=end - start)

    def _room_for(self, size: int) -> BinaryIO:
        if self._file is not None and self._file.tell() + size > self._max_file_bytes:
            self._close()
        if self._file is None:
            self._file = (self._folder / f"__0_{self._files}.distcp").open("wb")
            self._files += 1
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def _without_checksums() -> Iterator[None]:
    """torch.save computes a crc32 of all values, which halves its speed and which no loader of torch looks at."""
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def _described(size: Sizes, dtype: torch.dtype) -> TensorStorageMetadata:
    return TensorStorageMetadata(properties=TensorProperties(dtype=dtype), size=torch.Size(size), chunks=[])
