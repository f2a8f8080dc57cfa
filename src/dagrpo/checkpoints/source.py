"""Checkpoints to read: with dagrpo's manifest, or in a known format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dagrpo.checkpoints.folder import CONFIG, auxiliary_files
from dagrpo.checkpoints.formats import FORMATS, format_named
from dagrpo.checkpoints.manifest import TensorSummary, read_manifest, summary_of, verify_digests, verify_listing
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.errors import UserError
from dagrpo.utils.manifest import MANIFEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The input of a conversion: weights, and their auxiliary files."""

    folder: Path  # of the weights
    format: str  # of the weights
    home: Path  # the folder with config.json and tokenizer: `folder`, or that of the base model
    auxiliary: tuple[str, ...]  # names of the files of `home` that go along
    tensors: Tensors
    beside: Mapping[str, Path] = field(default_factory=dict)  # name in the new checkpoint -> file of another folder

    @property
    def files(self) -> dict[str, Path]:
        """Return the path of every auxiliary file by its name in the new checkpoint."""
        return {name: self.home / name for name in self.auxiliary} | dict(self.beside)

    def summary(self) -> TensorSummary:
        """Return the manifest's summary of the weights after checking every file; without a manifest, compute it."""
        if not (self.folder / MANIFEST).is_file():
            return summary_of(self.tensors)
        manifest = read_manifest(self.folder / MANIFEST)
        verify_digests(self.folder, manifest)
        return manifest.tensors


def open_checkpoint(folder: Path, base: Path | None = None) -> Source:
    """Open a checkpoint of any format. Files are checked for presence and length, their bytes not yet.

    `base` is the model that training began with: it gives config, tokenizer and missing rows of the vocabulary to a checkpoint that
    a trainer saved without them. Raises UserError if the folder is not a checkpoint, or incomplete.
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
        auxiliary=tuple(auxiliary_files(home)),
        tensors=open_as(format, folder, base),
    )


def open_tensors(folder: Path) -> Tensors:
    """Open the weights of a checkpoint folder in any format."""
    return open_as(format_of(folder), folder)


def format_of(folder: Path) -> str:
    """Return the format from the manifest, or else from the files. Raises UserError if neither identifies it."""
    if (folder / MANIFEST).is_file():
        return read_manifest(folder / MANIFEST).format
    for name in reversed(FORMATS.names()):  # those of packages first: they are more specific
        if FORMATS.get(name).recognises(folder):
            return name
    raise UserError(
        f"{folder} is not a checkpoint in any format that is installed ({', '.join(FORMATS.names())}): correct the path, "
        "or install the package of its format."
    )


def open_as(format: str, folder: Path, base: Path | None = None) -> Tensors:
    """Open the weights of a folder in a known format."""
    return format_named(format, f"the format of {folder}").open(folder, base)
