"""safetensors files, written tensor by tensor and read by mapping.

The safetensors package itself is not used for writing: its `save_file` needs all tensors of a file in memory (2.1 GB for
a file of 1 GB), and it writes several metadata keys in random order, so that equal weights give unequal files.
Layout: 8 bytes header length, JSON header padded with spaces to 8 bytes, then the values of each tensor
(https://huggingface.co/docs/safetensors, format).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dagrpo.checkpoints.file_plan import PlannedFile, write_planned
from dagrpo.checkpoints.tensors import SomeTensors, Tensors, TensorSpec, raw_bytes, total_bytes
from dagrpo.core.errors import UserError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


def planned_safetensors(name: str, tensors: Tensors, metadata: Mapping[str, str]) -> PlannedFile:
    """Plan one file with all tensors; equal tensors give equal bytes. Writing it holds one tensor in memory."""
    # The widest type first, so that each tensor is aligned; then by name, as the safetensors package does.
    order = sorted(tensors.specs, key=lambda name: (-tensors.specs[name].dtype.itemsize, name))
    header = _header(tensors, order, metadata)

    def write(file: BinaryIO) -> None:
        file.write(header)
        for tensor in order:
            file.write(raw_bytes(tensors.read(tensor)))

    return PlannedFile(name=name, bytes=len(header) + total_bytes(tensors), write=write)


def write_safetensors(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Write all tensors to one file."""
    write_planned(path.parent, planned_safetensors(path.name, tensors, metadata))


def plan_shards(tensors: Tensors, max_shard_bytes: int) -> list[Tensors]:
    """Fill shards with tensors in name order; a larger tensor gets a separate shard."""
    shards: list[list[str]] = [[]]
    room = max_shard_bytes
    for name in sorted(tensors.specs):
        size = tensors.specs[name].bytes
        if size > room and shards[-1]:
            shards.append([])
            room = max_shard_bytes
        shards[-1].append(name)
        room -= size
    return [SomeTensors(tensors, names) for names in shards]


class SafetensorsFile:
    """One file, mapped into memory. Raises UserError if it is missing, truncated, or not safetensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = cast(Any, self._open())  # its stub is untyped
        self.names = frozenset(self._handle.keys())
        self.metadata: Mapping[str, str] = self._handle.metadata() or {}

    def spec(self, name: str) -> TensorSpec:
        """Return type and shape, from the header alone."""
        view = self._handle.get_slice(name)
        return TensorSpec(dtype=self._dtype(name, view.get_dtype()), shape=tuple(view.get_shape()))

    def read(self, name: str) -> Tensor:
        """Return a view of the file; changing it copies the page and leaves the file alone."""
        tensor: Tensor = self._handle.get_tensor(name)
        return tensor

    def _open(self) -> safe_open:
        try:
            return safe_open(self.path, framework="pt")
        except FileNotFoundError:
            raise UserError(f"{self.path} is missing: copy or make that checkpoint again.") from None
        except SafetensorError as error:
            raise UserError(
                f"{self.path} is truncated or not a safetensors file ({error}): copy or make that checkpoint again."
            ) from None
        except OSError as error:
            raise UserError(f"{self.path} cannot be read ({error}): copy or make that checkpoint again.") from None

    def _dtype(self, name: str, code: str) -> torch.dtype:
        if code not in DTYPES:
            raise UserError(
                f"{self.path}: tensor {name} has the type {code}, which is not supported: store it in another type."
            )
        return DTYPES[code]


def _header(tensors: Tensors, names: list[str], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    start = 0
    for name in names:
        spec = tensors.specs[name]
        offsets = [start, start + spec.bytes]
        header[name] = {"dtype": CODES[spec.dtype], "shape": list(spec.shape), "data_offsets": offsets}
        start += spec.bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
