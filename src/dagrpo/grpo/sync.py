"""How the trainer's weights reach the engine: safetensors in a folder that lives in memory (tmpfs)."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dagrpo.checkpoints.folder import copy_auxiliary
from dagrpo.checkpoints.manifest import MANIFEST, read_manifest
from dagrpo.checkpoints.safetensors_file import write_safetensors
from dagrpo.checkpoints.tensors import Tensors

WEIGHTS = "model.safetensors"


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class EngineFolder:
    """A Hugging Face folder that always holds the newest weights, for the engine to load from."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, weights: Tensors) -> None:
        """Replace the weights as one rename."""
        temporary = self.path / f"{WEIGHTS}.part"
        write_safetensors(temporary, weights, {"format": "pt"})
        temporary.replace(self.path / WEIGHTS)


@contextmanager
def engine_folder(like: Path) -> Iterator[EngineFolder]:
    """A folder with the configuration and tokenizer of the checkpoint `like`, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="dagrpo-", dir=_memory_folder()))
    try:
        copy_auxiliary(like, read_manifest(like / MANIFEST), path)
        yield EngineFolder(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
