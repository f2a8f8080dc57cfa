"""Reader of tensor boxes in a `torch_dist` folder, by memory mapping.

It reads the folders of any writer. Values are never unpickled and, where a box lies in one stored chunk, never copied. Only tensors
are read, neither objects nor optimizer state.
"""

import mmap
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dagrpo.checkpoints.weight_map import require_own
from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.utils.file_names import is_plain
from dagrpo_megatron.distcp_writer import METADATA
from dagrpo_megatron.layout import Sizes
from dagrpo_megatron.pickles import StoredTensor, TensorHeader, read_header, read_metadata

_LOCAL_HEADER_BYTES = 30  # of a zip entry, before its name


class DistcpReader:
    """Tensors of one folder. Raises UserError if it has no readable `.metadata`, or lacks a file that this names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stored = read_metadata(folder / METADATA)
        self._indexes: dict[str, _ChunkIndex] = {}
        self._files: dict[str, mmap.mmap] = {}
        self._items: dict[tuple[int, Sizes], _Item] = {}  # by length and shape, the latest one
        self.specs = {key: stored.spec for key, stored in self._stored.items()}

    def read(self, key: str, offsets: Sizes, sizes: Sizes) -> Tensor:
        """Read the box of a tensor. Raises UserError if a part of it is not stored, or its file is damaged."""
        missing = torch.Size(sizes).numel()
        found: Tensor | None = None
        for start, extent in self._candidates(key, offsets, sizes):
            low = [max(a, b) for a, b in zip(offsets, start, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(offsets, sizes, start, extent, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            lengths = [b - a for a, b in zip(low, high, strict=True)]
            values = _narrowed(self._chunk(key, start, extent), low, start, lengths)
            if lengths == list(sizes):
                return values
            if found is None:
                found = torch.empty(sizes, dtype=self.specs[key].dtype)
            _narrowed(found, low, offsets, lengths).copy_(values)
            missing -= values.numel()
        if missing or found is None:
            raise UserError(
                f"{self._folder} lacks a part of {key}: a file is missing from it, copy or make that checkpoint again."
            )
        return found

    def _candidates(self, key: str, offsets: Sizes, sizes: Sizes) -> list[tuple[Sizes, Sizes]]:
        if key not in self._indexes:
            self._require_as_many_axes(key)
            self._indexes[key] = _ChunkIndex(self._stored[key])
        return self._indexes[key].near(offsets, sizes)

    def _require_as_many_axes(self, key: str) -> None:
        stored = self._stored[key]
        axes = len(stored.spec.shape)
        if any(len(start) != axes or len(extent) != axes for start, (extent, _) in stored.chunks.items()):
            raise UserError(
                f"{self._folder / METADATA} describes a part of {brief(key)} that does not fit it: do not use this checkpoint."
            )

    def _chunk(self, key: str, start: Sizes, extent: Sizes) -> Tensor:
        _, place = self._stored[key].chunks[start]
        path = self._folder / place.file
        if not is_plain(place.file):
            raise UserError(
                f"{self._folder / METADATA} names {brief(place.file)}, which is not a file of its folder: "
                "do not use this checkpoint."
            )
        mapped = self._map(path)
        if place.offset < 0 or place.length < 0 or place.offset + place.length > len(mapped):
            raise UserError(f"{path} is truncated: copy or make that checkpoint again.")
        item = self._items.get((place.length, extent))
        if item is None or not item.is_like(mapped, place.offset, place.length):
            item = self._items[place.length, extent] = _item(mapped, place.offset, place.length, f"{key} in {path}")
        tensor = _mapped_tensor(mapped, place.offset, item, f"{key} in {path}")
        if tuple(tensor.shape) != extent or tensor.dtype != self.specs[key].dtype:
            raise UserError(f"{path} holds {key} in another shape or type than {METADATA} says: make it again.")
        return tensor

    def _map(self, path: Path) -> mmap.mmap:
        if path.name not in self._files:
            require_own(path.parent, path.name)
            if path.exists() and not path.is_file():  # a pipe would be waited for
                raise UserError(f"{path} is not a regular file: copy or make that checkpoint again.")
            try:
                with path.open("rb") as file:  # a private map: nothing written to it reaches the file
                    self._files[path.name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except FileNotFoundError:
                raise UserError(f"{path} is missing: copy or make that checkpoint again.") from None
            except ValueError:  # an empty file cannot be mapped
                raise UserError(f"{path} is truncated: copy or make that checkpoint again.") from None
        return self._files[path.name]


class _ChunkIndex:
    """Index of one tensor's chunks by layer and expert, if every chunk has just one of each.

    A mixture of experts has ten thousands of chunks in a tensor: scanning all for each box would take hours.
    """

    def __init__(self, stored: StoredTensor) -> None:
        self._all = [(start, extent) for start, (extent, _) in stored.chunks.items()]
        self._depth = min((_leading_ones(extent) for _, extent in self._all), default=0)
        self._by_place: dict[Sizes, list[tuple[Sizes, Sizes]]] = {}
        for start, extent in self._all:
            self._by_place.setdefault(start[: self._depth], []).append((start, extent))

    def near(self, offsets: Sizes, sizes: Sizes) -> list[tuple[Sizes, Sizes]]:
        if _leading_ones(sizes) < self._depth:
            return self._all
        return self._by_place.get(offsets[: self._depth], [])


def _leading_ones(sizes: Sizes) -> int:
    return next((axis for axis, size in enumerate(sizes) if size != 1), len(sizes))


def _narrowed(tensor: Tensor, low: list[int], start: Sizes, lengths: list[int]) -> Tensor:
    for axis, (begin, origin, length) in enumerate(zip(low, start, lengths, strict=True)):
        tensor = tensor.narrow(axis, begin - origin, length)
    return tensor


class _Span:
    """Part of a mapped file, with the file interface that the zipfile module reads."""

    def __init__(self, mapped: mmap.mmap, start: int, length: int) -> None:
        self._mapped, self._start, self._length, self._position = mapped, start, length, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = (0, self._position, self._length)[whence] + offset
        return self._position

    def read(self, count: int = -1) -> bytes:
        end = self._length if count < 0 else min(self._length, self._position + count)
        begin, self._position = self._position, max(end, self._position)
        return self._mapped[self._start + begin : self._start + end]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """Contents that torch.save wrote for a tensor. `begin` and `end` of its values count from the beginning of the item."""

    header: TensorHeader
    begin: int
    end: int
    before: bytes
    after: bytes

    def is_like(self, mapped: mmap.mmap, start: int, length: int) -> bool:
        """Return True if all bytes but the values are the same at `start`, and so everything that was parsed from them."""
        before, after = mapped[start : start + self.begin], mapped[start + self.end : start + length]
        return before == self.before and after == self.after


def _item(mapped: mmap.mmap, start: int, length: int, where: str) -> _Item:
    records = _records(mapped, start, length, where)
    pickled = next((name for name in records if name.endswith("/data.pkl")), None)
    if pickled is None:
        raise UserError(f"{where} is not a tensor that torch.save wrote: copy or make that checkpoint again.")
    begin, end = records[pickled]
    header = read_header(mapped[begin:end], where)
    begin, end = records.get(pickled.removesuffix("data.pkl") + f"data/{header.record}", (0, 0))
    if begin == end:
        raise UserError(f"{where} is damaged (its values are missing): copy or make that checkpoint again.")
    return _Item(
        header=header,
        begin=begin - start,
        end=end - start,
        before=mapped[start:begin],
        after=mapped[end : start + length],
    )


def _mapped_tensor(mapped: mmap.mmap, start: int, item: _Item, where: str) -> Tensor:
    header = item.header
    values = torch.frombuffer(mapped, dtype=torch.uint8, count=item.end - item.begin, offset=start + item.begin)
    if (start + item.begin) % header.dtype.itemsize:
        values = values.clone()  # a view needs aligned values
    try:
        return values.view(header.dtype).as_strided(header.shape, header.strides, header.offset)
    except RuntimeError as error:  # torch's word for a shape that goes beyond the values
        raise UserError(f"{where} is damaged ({str(error).splitlines()[0]}): copy or make it again.") from None


def _records(mapped: mmap.mmap, start: int, length: int, where: str) -> dict[str, tuple[int, int]]:
    """Return begin and end of an item's records in the file. Their crc32 is not checked: it may be left out."""
    try:
        entries = zipfile.ZipFile(_Span(mapped, start, length)).infolist()
    except Exception as error:  # noqa: BLE001 - zipfile raises anything on a damaged directory
        raise UserError(f"{where} is damaged ({type(error).__name__}): copy or make that checkpoint again.") from None
    records = {}
    for entry in entries:
        local = start + entry.header_offset
        lengths = (mapped[local + at : local + at + 2] for at in (26, 28))  # lengths of the name and of what follows it
        begin = local + _LOCAL_HEADER_BYTES + sum(int.from_bytes(two, "little") for two in lengths)
        if entry.compress_type != zipfile.ZIP_STORED or begin + entry.file_size > start + length:
            raise UserError(f"{where} is compressed or damaged: save or copy that checkpoint again.")
        records[entry.filename] = (begin, begin + entry.file_size)
    return records
