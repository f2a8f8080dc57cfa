"""LoRA adapters that SGLang serves beside weights that stay in its servers.

A weight sync then sends only the adapter. Each version travels in a separate folder, in PEFT's layout.
trainer/sync/lora_export.py takes an adapter from the trainer.
"""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dagrpo.checkpoints.adapted import CONFIG, PREFIX, WEIGHTS, adapter_config
from dagrpo.checkpoints.safetensors_file import write_safetensors
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.engine.sglang.weights import WeightsFolder
from dagrpo.engine.version import WeightVersion
from dagrpo.utils.files import json_text

CPU_BACKEND = "torch_native"  # SGLang's other ones are kernels for a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterForm:
    """Form that all versions of an adapter share, and that a server reserves memory for."""

    rank: int
    alpha: int
    target_modules: tuple[str, ...]  # last parts of the names of layers, such as q_proj

    def flags(self, *, gpu: bool) -> list[str]:
        """Return the server's flags. Room for one adapter is enough: requests of two versions are never computed together."""
        backend = [] if gpu else [f"--lora-backend={CPU_BACKEND}"]
        return [
            "--enable-lora",
            f"--max-lora-rank={self.rank}",
            "--max-loras-per-batch=1",
            "--lora-strict-loading",
            *backend,
            "--lora-target-modules",
            *self.target_modules,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One version of an adapter: A and B of every layer under their names in PEFT's files."""

    form: AdapterForm
    tensors: Tensors


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
        write_safetensors(folder / WEIGHTS, tensors, {"format": "pt"})
        self._newest = folder
        return folder

    def _remove_newest(self) -> None:
        """Remove the newest version so far, which every server has loaded."""
        if self._newest is not None:
            with suppress(FileNotFoundError):  # another process has removed it, and it is not needed
                shutil.rmtree(self._newest)
            self._newest = None


def is_of_an_adapter(name: str) -> bool:
    """Return True if a tensor, as a server or a weight sync names it, is a part of an adapter."""
    return name.startswith(PREFIX)
