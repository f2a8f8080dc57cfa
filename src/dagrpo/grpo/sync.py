"""How the trainer's weights reach the engine: safetensors in a folder that lives in memory (tmpfs)."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

WEIGHTS = "model.safetensors"
NOT_COPIED = {"manifest.json", "provenance.json"}
WEIGHT_SUFFIXES = {".safetensors", ".distcp", ".metadata"}


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class EngineFolder:
    """A Hugging Face folder that always holds the newest weights, for the engine to load from."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        self.path = path
        self._dtype = dtype

    def write(self, model: PreTrainedModel) -> None:
        """Replace the weights as one rename. A tied embedding is written once, as its owner."""
        tensors = {name: p.detach().to("cpu", self._dtype).contiguous() for name, p in model.named_parameters()}
        temporary = self.path / f"{WEIGHTS}.part"
        save_file(tensors, temporary, metadata={"format": "pt"})
        temporary.replace(self.path / WEIGHTS)


@contextmanager
def engine_folder(like: Path, dtype: torch.dtype) -> Iterator[EngineFolder]:
    """A folder with the configuration and tokenizer of the checkpoint `like`, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="dagrpo-", dir=_memory_folder()))
    try:
        for file in sorted(like.iterdir()):
            is_weights = file.suffix in WEIGHT_SUFFIXES or file.name in {".metadata", *NOT_COPIED}
            if file.is_file() and not is_weights and not file.name.endswith(".index.json"):
                shutil.copyfile(file, path / file.name)
        yield EngineFolder(path, dtype)
    finally:
        shutil.rmtree(path, ignore_errors=True)
