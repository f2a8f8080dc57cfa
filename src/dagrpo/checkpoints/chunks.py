"""Check of chunk positions in the files of a DCP folder.

Done before torch reads the folder. torch does not check the positions: two overlapping chunks leave a hole in their tensor, filled
with arbitrary memory.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.checkpoints.safetensors_file import SafetensorsFile
from dagrpo.checkpoints.tensors import TensorSpec
from dagrpo.checkpoints.weight_map import require_own
from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief

_FARTHEST = 1 << 40  # elements along one axis


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A part of a tensor, with its offset in it."""

    file: Path
    spec: TensorSpec
    start: tuple[int, ...]

    def overlaps(self, other: "_Chunk") -> bool:
        """Return True if both chunks share an element."""
        sides = zip(self.start, self.spec.shape, other.start, other.spec.shape, strict=True)
        return all(a < b + m and b < a + n for a, n, b, m in sides)


def require_sound_chunks(files: Sequence[Path]) -> None:
    """Raise UserError if a file lacks its chunks' positions, or the chunks of a tensor overlap or differ in type."""
    chunks: dict[str, list[_Chunk]] = defaultdict(list)
    for path in files:
        require_own(path.parent, path.name)
        file = SafetensorsFile(path)
        places = _places(file)
        for name in sorted(file.names):
            chunks[name].append(_Chunk(path, file.spec(name), _start(path, name, file.spec(name), places)))
    for name, parts in chunks.items():
        _require_apart(name, parts)


def _places(file: SafetensorsFile) -> dict[str, Any] | None:
    """Return the header's entry of each chunk; None without one: then every chunk is a whole tensor."""
    text = file.metadata.get("DCP_SHARDING_INFO")
    if not text:
        return None
    try:
        places = json.loads(text)
    except (ValueError, RecursionError):
        places = None
    if not isinstance(places, dict):
        raise UserError(f"{file.path} does not say where its tensors belong: copy or make that checkpoint again.")
    return places


def _start(path: Path, name: str, spec: TensorSpec, places: dict[str, Any] | None) -> tuple[int, ...]:
    if places is None:
        return (0,) * len(spec.shape)
    place = places.get(name)
    start = place.get("saved_offsets") if isinstance(place, dict) else None
    if not isinstance(start, list) or len(start) != len(spec.shape) or not all(map(_is_offset, start)):
        raise UserError(
            f"{path} does not say where its tensor {brief(name)} begins: copy or make that checkpoint again."
        )
    return tuple(start)


def _is_offset(value: Any) -> bool:
    return type(value) is int and 0 <= value < _FARTHEST


def _require_apart(name: str, chunks: Sequence[_Chunk]) -> None:
    for number, chunk in enumerate(chunks):
        for other in chunks[:number]:
            alike = chunk.spec.dtype == other.spec.dtype and len(chunk.start) == len(other.start)
            if not alike or chunk.overlaps(other):
                raise UserError(
                    f"{chunk.file} and {other.file.name} both hold one part of the tensor {brief(name)}, or in different types: "
                    "copy or make that checkpoint again."
                )
