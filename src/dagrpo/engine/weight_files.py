"""Weight sync by safetensors files that a server reads.

For a server of our own that is a folder in memory. A server that runs elsewhere sees another /dev/shm, so for that one the
folder is in `runtime.engine.weights_folder`, which both must see under the same path.
"""

import os
import shutil
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dagrpo.checkpoints.folder import auxiliary_files, copy_files
from dagrpo.checkpoints.lora_layers import CONFIG, adapter_config
from dagrpo.checkpoints.lora_layers import WEIGHTS as ADAPTER_WEIGHTS
from dagrpo.checkpoints.safetensors_file import write_safetensors
from dagrpo.checkpoints.tensors import Tensors, total_bytes
from dagrpo.core.errors import UserError
from dagrpo.engine.interface import AdapterForm, WeightVersion
from dagrpo.utils.console import say
from dagrpo.utils.files import json_text
from dagrpo.utils.tempdirs import remove_abandoned, temporary_folder
from dagrpo.utils.watched_process import MEMORY

WEIGHTS = "model.safetensors"
KIND = "weights"
HEADROOM = 1 << 24  # bytes beside the tensors: the header, and a tokenizer


class WeightsFolder:
    """Hugging Face folder of the newest weights, as a context manager. It is created when it is first written to.

    Its lock says that it is in use. Folders of processes that were killed hold a model's worth of memory each: creating
    the next one removes them.
    """

    def __init__(self, like: Path, parent: Path | None, mode: int = 0o700) -> None:
        """Prepare a folder with configuration and tokenizer of the model folder `like`.

        `parent` None: memory if it has room, else the folder for temporary files. `mode`: its permissions.
        """
        self._like = like
        self._parent = parent
        self._mode = mode
        self._path: Path | None = None
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._resources.close()

    def write(self, weights: Tensors) -> Path:
        """Replace the weights; return the folder that now holds them. Raises UserError, before anything is written, if there is no room.

        The old ones are removed first, so that there is never more than one copy: a server has read them when it answers.
        """
        if self._path is None:
            self._path = self._make(total_bytes(weights) + HEADROOM)
        target = self._path / WEIGHTS
        target.unlink(missing_ok=True)
        _require_room(self._path, total_bytes(weights))
        temporary = self._path / f"{WEIGHTS}.part"
        write_safetensors(temporary, weights, {"format": "pt"})
        return temporary.replace(target).parent

    def new_folder(self, name: str, tensors: Tensors) -> Path:
        """Return a new folder in this one, with room for these tensors beside its files. Raises UserError if there is no room."""
        needed = total_bytes(tensors) + HEADROOM
        if self._path is None:
            self._path = self._make(needed)
        if not self._path.is_dir():
            raise UserError(
                f"{self._path} has gone while this run uses it: start again, and leave the folder alone while it does."
            )
        _require_room(self._path, needed)
        folder = self._path / name
        folder.mkdir(mode=self._path.stat().st_mode & 0o777)
        return folder

    def remove_weights(self) -> None:
        """Remove the weights, once every server has read them and no further sync needs them."""
        if self._path is not None:
            (self._path / WEIGHTS).unlink(missing_ok=True)

    def _make(self, needed: int) -> Path:
        parent = self._parent or _memory_or_disk(needed)
        make_writable(parent)
        remove_abandoned(parent, KIND)
        _require_room(parent, needed)
        path = self._resources.enter_context(temporary_folder(parent, KIND, self._mode))
        copy_files({file: self._like / file for file in auxiliary_files(self._like)}, path)
        return path


class AdapterFolders:
    """Folders of an adapter's versions; they are removed with the folder of weights that contains them."""

    def __init__(self, form: AdapterForm, parent: WeightsFolder) -> None:
        self._form = form
        self._parent = parent
        self._newest: Path | None = None

    def write(self, tensors: Tensors, version: WeightVersion) -> Path:
        """Write this version to a new folder. Raises UserError if there is no room.

        The previous one is removed, although a server may have it mapped: a removed file stays readable there, and no server loads an old
        version again.
        """
        self._remove_newest()
        folder = self._parent.new_folder(version.sent, tensors)
        config = adapter_config(self._form.rank, self._form.alpha, [*self._form.target_modules])
        (folder / CONFIG).write_text(json_text(config), encoding="utf-8")
        write_safetensors(folder / ADAPTER_WEIGHTS, tensors, {"format": "pt"})
        self._newest = folder
        return folder

    def _remove_newest(self) -> None:
        """Remove the newest version so far, which every server has loaded."""
        if self._newest is not None:
            with suppress(FileNotFoundError):  # another process has removed it, and it is not needed
                shutil.rmtree(self._newest)
            self._newest = None


def _memory_or_disk(needed: int) -> Path:
    disk = Path(tempfile.gettempdir())
    if not os.access(MEMORY, os.W_OK):
        return disk
    remove_abandoned(MEMORY, KIND)
    free = shutil.disk_usage(MEMORY).free
    if free >= needed:
        return MEMORY
    say(
        f"{MEMORY} has {free:,} bytes free and the engine's weights take {needed:,}: they go through {disk}, which is "
        "slower (runtime.engine.weights_folder chooses another folder)."
    )
    return disk


def make_writable(folder: Path) -> None:
    """Create the folder if it is missing. Raises UserError if it cannot be created or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be made ({error.strerror}): correct runtime.engine.weights_folder."
        ) from error
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder} cannot be written to: correct runtime.engine.weights_folder or its permissions.")


def _require_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"{folder} has {free:,} bytes free, and the weights on their way to the engine take {needed:,}: make room, "
            "or set runtime.engine.weights_folder to a folder that has it."
        )
