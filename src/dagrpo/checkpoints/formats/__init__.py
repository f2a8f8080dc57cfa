"""Checkpoint formats: the files that hold a model's weights. One module per format; others plug in.

A format of another package is found by the entry point group `dagrpo.checkpoint_formats`. Nothing here imports torch, so
that the schema can ask for the names.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dagrpo.checkpoints.planned import PlannedFile
from dagrpo.errors import UserError
from dagrpo.plugins import Plugins
from dagrpo.visible import one_line, shown

if TYPE_CHECKING:
    from dagrpo.checkpoints.tensors import Tensors
    from dagrpo.params.schema import Params


class CheckpointFormat(ABC):
    """A layout of weights in files. It says nothing about config and tokenizer: these are the same beside every format.

    Names, types and shapes of tensors are those of the Hugging Face layout, whatever the files themselves call them.
    """

    name: ClassVar[str]  # as the manifest and params.yaml write it
    own_files: ClassVar[tuple[str, ...]]  # patterns of the file names that do not go along into another format
    options: ClassVar[Mapping[str, str]] = {}  # what `dagrpo convert --option NAME=VALUE` takes: name -> help

    @abstractmethod
    def recognises(self, folder: Path) -> bool:
        """Whether a folder without a manifest holds weights in this format."""

    @abstractmethod
    def open(self, folder: Path, base: Path | None = None) -> "Tensors":
        """The weights of a folder, not yet read. `base` is the model that training began with, where one was named."""

    @abstractmethod
    def planned_files(self, described_by: Path, tensors: "Tensors", max_shard_bytes: int) -> list[PlannedFile]:
        """The files of weights whose config.json is in `described_by`. UserError: this format cannot hold them."""

    def extra_files(self, described_by: Path, options: Mapping[str, str]) -> list[PlannedFile]:
        """What a conversion writes beside the weights, such as a script that trains them."""
        return []

    def check(self, params: "Params") -> None:  # noqa: B027  most formats take all models
        """Raise UserError where the parameters select a model that this format cannot hold. Called when params.yaml is read."""

    def facts(self, folder: Path) -> list[tuple[str, str]]:
        """Lines for the summary of a checkpoint, beside size and digest."""
        return []

    def owns(self, name: str) -> bool:
        """Whether a file is part of the weights or belongs to this format alone."""
        return any(fnmatch(name, pattern) for pattern in self.own_files)


FORMATS: Plugins[CheckpointFormat] = Plugins(
    what="checkpoint format",
    package="dagrpo.checkpoints.formats",
    attribute="FORMAT",
    group="dagrpo.checkpoint_formats",
    key="checkpoint.format",
)


def require_format_name(name: str, where: str = "`checkpoint.format`") -> str:
    """The name itself. UserError: no format of that name is installed; `where` says who asks for it.

    An import path is refused: manifests name formats, and what is read from a disk must not choose what is imported.
    """
    if name not in FORMATS.own_names() and name not in FORMATS.names():
        raise UserError(
            f"{where} is {shown(name)}, a checkpoint format that is not installed (there are {', '.join(FORMATS.names())}): "
            f"correct the name, or install the package of the format (pip install ./packages/dagrpo_{one_line(name, 40)})."
        )
    return name


def format_named(name: str, where: str = "`checkpoint.format`") -> CheckpointFormat:
    """The format of that name. UserError as above."""
    return FORMATS.get(require_format_name(name, where))
