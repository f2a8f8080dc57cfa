"""A checkpoint to convert from: one of ours with a manifest, a plain model folder, or what Megatron-LM saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagrpo.checkpoints.dcp import DcpTensors
from dagrpo.checkpoints.folder import CONFIG, auxiliary_files, unlisted_auxiliary_files
from dagrpo.checkpoints.hf import INDEX, WEIGHTS, HuggingFaceTensors
from dagrpo.checkpoints.manifest import (
    MANIFEST,
    Format,
    TensorSummary,
    read_manifest,
    summary_of,
    verify_digests,
    verify_listing,
)
from dagrpo.checkpoints.megatron.folder import open_tensors as open_megatron
from dagrpo.checkpoints.megatron.tensors import TRACKER, weights_folder
from dagrpo.checkpoints.tensors import Tensors, dtype_name
from dagrpo.errors import UserError
from dagrpo.files import sha256_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`auxiliary` are files of `home`, the folder with config.json and tokenizer: that of the weights, or of the base.

    `beside` are files of other folders that go along, by their names in the new checkpoint; `also_read` are folders that
    tensors come from beside `folder` and `home`.
    """

    folder: Path
    format: Format
    home: Path
    auxiliary: tuple[str, ...]
    tensors: Tensors
    beside: Mapping[str, Path] = field(default_factory=dict)
    also_read: tuple[Path, ...] = ()

    @property
    def files(self) -> dict[str, Path]:
        """Everything but the weights, by its name in the new checkpoint."""
        return {name: self.home / name for name in self.auxiliary} | dict(self.beside)

    def identity(self) -> dict[str, Any]:
        """What tells it from other sources, and from itself before a change, without reading the weights."""
        read = {path for folder in (self.folder, self.home, *self.also_read) for path in _files_with_weights(folder)}
        return {
            "tensors": {name: [dtype_name(spec.dtype), *spec.shape] for name, spec in self.tensors.specs.items()},
            "files": {name: sha256_of(path) for name, path in self.files.items()},
            "read": {str(path.resolve()): [path.stat().st_size, path.stat().st_mtime_ns] for path in read},
        }

    def summary(self) -> TensorSummary:
        """What the manifest says about the weights after checking every file; without one, what the weights say."""
        if not (self.folder / MANIFEST).is_file():
            return summary_of(self.tensors)
        manifest = read_manifest(self.folder / MANIFEST)
        verify_digests(self.folder, manifest)
        return manifest.tensors


def open_source(folder: Path, base: Path | None = None) -> Source:
    """Open a checkpoint of any format. Files are checked for presence and length, their bytes not yet.

    `base` is the model that training began with: it gives config, tokenizer and missing rows of the vocabulary to a
    checkpoint that Megatron-LM saved. UserError: the folder is no checkpoint, or not whole.
    """
    if (folder / MANIFEST).is_file():
        verify_listing(folder)
    format, home = format_of(folder), base or folder
    if not (home / CONFIG).is_file():
        raise UserError(
            f"{home} has no {CONFIG}: give the model that training began with as the base, or copy its files there."
        )
    return Source(
        folder=folder,
        format=format,
        home=home,
        auxiliary=tuple(_auxiliary_files(home)),
        tensors=open_as(format, folder, base),
    )


def open_tensors(folder: Path) -> Tensors:
    """The weights of a checkpoint folder in any format."""
    return open_as(format_of(folder), folder)


def format_of(folder: Path) -> Format:
    """What the manifest says, or else the files. UserError: neither says anything."""
    if (folder / MANIFEST).is_file():
        return read_manifest(folder / MANIFEST).format
    if (folder / ".metadata").is_file() or (folder / TRACKER).is_file():
        return "megatron"
    if (folder / WEIGHTS).is_file() or (folder / INDEX).is_file():
        return "huggingface"
    if any(folder.glob("shard-*.safetensors")):
        return "dcp"
    raise UserError(
        f"{folder} is not a checkpoint ({WEIGHTS}, {INDEX}, shard-*.safetensors, {TRACKER}): correct the path."
    )


def open_as(format: Format, folder: Path, base: Path | None = None) -> Tensors:
    """The weights of a folder in a known format."""
    match format:
        case "huggingface":
            return HuggingFaceTensors(folder)
        case "dcp":
            return DcpTensors(folder)
        case "megatron":
            return open_megatron(folder, base, open_tensors(base) if base else None)


def _files_with_weights(folder: Path) -> list[Path]:
    folders = {folder, weights_folder(folder)} if (folder / TRACKER).is_file() else {folder}
    return [path for each in folders for path in each.iterdir() if path.is_file()]


def _auxiliary_files(folder: Path) -> list[str]:
    if (folder / MANIFEST).is_file():
        return auxiliary_files(read_manifest(folder / MANIFEST))
    return unlisted_auxiliary_files(folder)
