"""Plug-in checkpoint formats: layouts of a model's weights in files.

One module per format. Another package's format is found by the entry point group `dagrpo.checkpoint_formats`. Nothing here imports
torch, so that the schema can ask for the names.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dagrpo.checkpoints.file_plan import PlannedFile
from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief, one_line
from dagrpo.core.plugins import Plugins

if TYPE_CHECKING:
    from dagrpo.checkpoints.tensors import Tensors


class CheckpointFormat(ABC):
    """A layout of weights in files. Config and tokenizer are the same beside every format.

    Names, types and shapes of tensors are those of the Hugging Face layout, whatever names the files have for them.
    """

    name: ClassVar[str]  # as the manifest and params.yaml write it
    own_files: ClassVar[tuple[str, ...]]  # patterns of file names that are not copied into another format
    options: ClassVar[Mapping[str, str]] = {}  # of `dagrpo convert --option NAME=VALUE`: name -> help

    @abstractmethod
    def recognises(self, folder: Path) -> bool:
        """Return True if a folder without a manifest holds weights in this format."""

    @abstractmethod
    def open(self, folder: Path, base: Path | None = None) -> "Tensors":
        """Open the weights of a folder without reading them. `base` is the model that training began with, if named."""

    @abstractmethod
    def planned_files(self, described_by: Path, tensors: "Tensors", max_shard_bytes: int) -> list[PlannedFile]:
        """Plan the files of weights whose config.json is in `described_by`. Raises UserError if this format cannot hold them."""

    def extra_files(self, described_by: Path, options: Mapping[str, str]) -> list[PlannedFile]:
        """Plan a conversion's files beside the weights, such as a script that trains them."""
        return []

    def check(self, *, takes_pictures: bool) -> None:  # noqa: B027  most formats take all models
        """Raise UserError if this format cannot hold a model that `takes_pictures`. Called when params.yaml is read."""

    def facts(self, folder: Path) -> list[tuple[str, str]]:
        """Return lines for the summary of a checkpoint, beside size and digest."""
        return []

    def owns(self, name: str) -> bool:
        """Return True if a file is part of the weights or belongs to this format alone."""
        return any(fnmatch(name, pattern) for pattern in self.own_files)


FORMATS: Plugins[CheckpointFormat] = Plugins(
    what="checkpoint format",
    package="dagrpo.checkpoints.formats",
    attribute="FORMAT",
    group="dagrpo.checkpoint_formats",
    key="checkpoint.format",
)


def require_format_name(name: str, where: str = "`checkpoint.format`") -> str:
    """Return the name if a format of that name is installed, else raise UserError; `where` describes the source of the name.

    An import path is refused: manifests name formats, and data read from a disk must not choose what is imported.
    """
    if name not in FORMATS.own_names() and name not in FORMATS.names():
        raise UserError(
            f"{where} is {brief(name)}, a checkpoint format that is not installed (there are {', '.join(FORMATS.names())}): "
            f"correct the name, or install the package of the format (pip install ./packages/dagrpo_{one_line(name, 40)})."
        )
    return name


def format_named(name: str, where: str = "`checkpoint.format`") -> CheckpointFormat:
    """Return the format of that name. Raises UserError if it is not installed; `where` describes the source of the name."""
    return FORMATS.get(require_format_name(name, where))
