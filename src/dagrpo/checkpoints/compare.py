"""Size and content of a checkpoint, and comparison of two.

Tensors are read one at a time.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dagrpo.checkpoints.formats import format_named
from dagrpo.checkpoints.manifest import Manifest, summary_of, verify_digests, verify_listing
from dagrpo.checkpoints.source import format_of, open_tensors
from dagrpo.checkpoints.tensors import TensorSpec, dtype_name, parameter_count, raw_bytes, total_bytes
from dagrpo.core.errors import UserError
from dagrpo.utils.manifest import fault_of

_BLOCK = 1 << 22  # values that are compared at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One tensor that differs: `what` describes how, `largest` is the largest absolute difference."""

    name: str
    what: str
    largest: float | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.what}" + (
            "" if self.largest is None else f", largest difference {self.largest:.3g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All differences of two checkpoints, by name, and how many tensors are equal byte for byte."""

    differences: tuple[Difference, ...]
    equal: int

    def lines(self) -> Iterator[str]:
        yield from map(str, self.differences)
        largest = max((d.largest for d in self.differences if d.largest is not None), default=0.0)
        yield f"{self.equal} tensors are equal, {len(self.differences)} differ; the largest difference is {largest:.3g}."


def compare(first: Path, second: Path) -> Comparison:
    """Compare the weights of two folders in any formats. Raises UserError if either is not a readable checkpoint."""
    ours, theirs = open_tensors(first), open_tensors(second)
    differences: list[Difference] = []
    for name in sorted(ours.specs.keys() | theirs.specs.keys()):
        one, other = ours.specs.get(name), theirs.specs.get(name)
        if one is None or other is None:
            differences.append(Difference(name=name, what=f"only in {second if one is None else first}"))
        elif one.shape != other.shape:
            differences.append(Difference(name=name, what=f"shape {list(one.shape)} and {list(other.shape)}"))
        else:
            differences += _of_values(name, one, other, ours.read(name), theirs.read(name))
    return Comparison(
        differences=tuple(differences), equal=len(ours.specs.keys() | theirs.specs.keys()) - len(differences)
    )


def _of_values(name: str, one: TensorSpec, other: TensorSpec, ours: Tensor, theirs: Tensor) -> list[Difference]:
    digests = [hashlib.sha256(raw_bytes(tensor)).hexdigest() for tensor in (ours, theirs)]
    if one.dtype == other.dtype and digests[0] == digests[1]:
        return []
    types = "" if one.dtype == other.dtype else f"{dtype_name(one.dtype)} and {dtype_name(other.dtype)}, "
    what = f"{types}sha256 {digests[0][:12]} and {digests[1][:12]}"
    return [Difference(name=name, what=what, largest=_largest_difference(ours, theirs))]


def _largest_difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest absolute difference, in float64, block by block; NaN if either tensor has one."""
    largest = 0.0
    for one, other in zip(torch.split(ours.reshape(-1), _BLOCK), torch.split(theirs.reshape(-1), _BLOCK), strict=True):
        if one.numel():
            difference = (one.to(torch.float64) - other.to(torch.float64)).abs().max().item()
            largest = difference if difference != difference else max(largest, difference)
            if largest != largest:
                break
    return largest


def described(folder: Path) -> Iterator[str]:
    """Yield lines about a checkpoint, with or without a manifest: a summary, then each tensor."""
    tensors = open_tensors(folder)
    summary = summary_of(tensors)
    yield f"format: {format_of(folder)}"
    yield f"parameters: {parameter_count(tensors):,} in {summary.count} tensors, {total_bytes(tensors):,} bytes"
    yield f"types: {', '.join(f'{count} {dtype}' for dtype, count in summary.dtypes.items())}"
    yield f"tensor digest: {summary.digest}"
    for name, spec in sorted(tensors.specs.items()):
        yield f"{name}  {dtype_name(spec.dtype)}  {list(spec.shape)}"


def verify_weights(folder: Path) -> Manifest:
    """Read files and tensors and check them against the manifest. Raises UserError naming the file, or if the weights changed."""
    manifest = verify_listing(folder)
    verify_digests(folder, manifest, fault_of)
    if summary_of(open_tensors(folder)) != manifest.tensors:
        raise UserError(
            f"{folder} holds other tensors than its manifest says although its files are the listed ones: make it again."
        )
    return manifest


def figures_of(folder: Path, manifest: Manifest) -> dict[str, float]:
    """Return the size of a checkpoint: parameters (tied weights once) and bytes of all its files."""
    return {"parameters": parameter_count(open_tensors(folder)), "bytes": manifest.bytes}


def summary_lines(folder: Path, manifest: Manifest) -> list[tuple[str, str]]:
    """Return the size as lines of text, with format, types and the beginning of the tensor digest."""
    size = figures_of(folder, manifest)
    return [
        ("folder", str(folder)),
        ("format", manifest.format),
        ("parameters", f"{size['parameters']:,}"),
        ("size", f"{size['bytes'] / 1e6:,.1f} MB"),
        ("types", ", ".join(f"{number} {dtype}" for dtype, number in manifest.tensors.dtypes.items())),
        ("tensor digest", manifest.tensors.digest[:16]),
        *format_named(manifest.format).facts(folder),
    ]
