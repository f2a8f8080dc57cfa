"""Pictures of token sequences: the files that each of them shows.

trainer/model/vision_tower.py computes their features. A file that several sequences show, as all samples of a problem do, is listed once.
"""

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

# Among the tensors of a batch:
_BYTES, _SIZES, _PLACES, _COUNTS = "picture_bytes", "picture_sizes", "picture_places", "picture_counts"
_Value = TypeVar("_Value", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedPictures:
    """Pictures of a batch. Example: rows that show (a), no picture and (b, a): files (a, b), places (0, 1, 0)."""

    files: tuple[bytes, ...]  # each once
    places: tuple[int, ...]  # [pictures], row after row: into the files


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePictures:
    """Pictures of some sequences, in the order in which each shows them. Example: files (a, b), places ((0,), (), (1, 0))."""

    files: tuple[bytes, ...]  # each once
    places: tuple[tuple[int, ...], ...]  # [sequences][pictures]: into the files

    @classmethod
    def of(cls, files: Sequence[Sequence[bytes]]) -> "SequencePictures | None":
        """Build from the files of each sequence; None without any."""
        numbers = _numbers(itertools.chain.from_iterable(files))
        if not numbers:
            return None
        return cls(files=tuple(numbers), places=tuple(tuple(numbers[file] for file in own) for own in files))

    def padded(self, numbers: Sequence[int]) -> PaddedPictures | None:
        """Return the pictures of a batch of some of the sequences; None without any."""
        places = [*itertools.chain.from_iterable(self.places[number] for number in numbers)]
        if not places:
            return None
        numbering = _numbers(places)
        return PaddedPictures(
            files=tuple(self.files[place] for place in numbering), places=tuple(numbering[place] for place in places)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to send to other ranks."""
        return {
            _BYTES: torch.frombuffer(bytearray(b"".join(self.files)), dtype=torch.uint8),
            _SIZES: torch.tensor([len(file) for file in self.files]),
            _PLACES: torch.tensor([*itertools.chain.from_iterable(self.places)]),
            _COUNTS: torch.tensor([len(own) for own in self.places]),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "SequencePictures | None":
        """Rebuild the pictures from the tensors of `tensors`; None if they are not among these."""
        if _BYTES not in tensors:
            return None
        content = tensors[_BYTES].numpy().tobytes()
        return cls(
            files=tuple(content[start:stop] for start, stop in _spans(tensors[_SIZES])),
            places=tuple(tuple(tensors[_PLACES][start:stop].tolist()) for start, stop in _spans(tensors[_COUNTS])),
        )


def _numbers(values: Iterable[_Value]) -> dict[_Value, int]:
    """Return each distinct value with its number, in order of appearance."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


def _spans(lengths: Tensor) -> list[tuple[int, int]]:
    """Return begin and end of consecutive parts of these lengths."""
    return [*itertools.pairwise(itertools.accumulate(lengths.tolist(), initial=0))]
