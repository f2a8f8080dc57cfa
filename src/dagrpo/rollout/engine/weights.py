"""How the trainer's weights reach the engine: safetensors in a folder that lives in memory (tmpfs)."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dagrpo.checkpoints.folder import copy_auxiliary
from dagrpo.checkpoints.manifest import MANIFEST, read_manifest
from dagrpo.checkpoints.safetensors_file import write_safetensors
from dagrpo.checkpoints.tensors import Tensors

WEIGHTS = "model.safetensors"


PREFIX, LOCK = "dagrpo-", ".lock"


def _memory_folder() -> Path:
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


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
    """A folder with the configuration and tokenizer of the checkpoint `like`, removed at the end.

    Those of trainers that were killed are removed at the beginning: they hold a model's worth of memory each.
    """
    remove_abandoned(_memory_folder())
    descriptor, name = tempfile.mkstemp(prefix=PREFIX, suffix=LOCK, dir=_memory_folder())
    os.close(descriptor)
    path = Path(name.removesuffix(LOCK))
    try:
        with FileLock(name):  # before there is a folder that could be taken for an abandoned one
            path.mkdir(mode=0o700)
            copy_auxiliary(like, read_manifest(like / MANIFEST), path)
            yield EngineFolder(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        Path(name).unlink(missing_ok=True)


def remove_abandoned(parent: Path) -> None:
    """Remove folders for an engine whose trainer is gone: nobody holds their lock."""
    for folder in parent.glob(f"{PREFIX}*"):
        if folder.is_dir():
            lock = Path(f"{folder}{LOCK}")
            with suppress(Timeout, OSError), FileLock(lock, timeout=0):  # or it is another user's
                shutil.rmtree(folder)
                lock.unlink(missing_ok=True)
