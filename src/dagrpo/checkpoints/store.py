"""Loading and saving of models in any checkpoint format.

`convert` changes formats; `sharded` handles models spread over processes, and also saves through here if one process writes.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dagrpo.checkpoints.file_plan import PlannedFile, write_all
from dagrpo.checkpoints.folder import copy_auxiliary, new_checkpoint, require_tokenizer, set_config_dtype
from dagrpo.checkpoints.formats import format_named
from dagrpo.checkpoints.manifest import Manifest, verify, write_manifest
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import Tensors, total_bytes
from dagrpo.utils.files import share
from dagrpo.utils.manifest import MANIFEST

if TYPE_CHECKING:  # transformers is imported where a model is made: reading and writing tensors needs none of it
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_MAX_SHARD_BYTES = 5_000_000_000


def load_model(folder: Path, dtype: torch.dtype) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Load (model, tokenizer) of a checkpoint in any format, after checking it against its manifest, in eval mode."""
    from dagrpo.checkpoints.modules import build_model
    from dagrpo.checkpoints.tokenizers import load_tokenizer

    verify(folder)
    require_tokenizer(folder)
    tensors = open_tensors(folder)
    state = {name: tensors.read(name) for name in tensors.specs}  # mapped, copied on write: the files never change
    return build_model(folder, state, dtype), load_tokenizer(folder)


def save_weights(
    tensors: Tensors, dtype: torch.dtype, like: Path, destination: Path, beside: Sequence[PlannedFile] = ()
) -> Manifest:
    """Write a model's weights, which are of `dtype`, one by one in the format of `like`. `beside`: extra files, such as an adapter."""
    origin = verify(like)
    with new_checkpoint(destination, total_bytes(tensors) + sum(file.bytes for file in beside)) as folder:
        copy_auxiliary(like, origin, folder)
        set_config_dtype(folder, dtype)
        write_all(folder, beside)
        return finish(folder, origin.format, tensors)


def finish(folder: Path, format: str, tensors: Tensors, max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES) -> Manifest:
    """Add the weights, then the manifest, to a folder that has its other files already."""
    layout = format_named(format)
    write_all(folder, layout.planned_files(folder, tensors, max_shard_bytes))
    return write_manifest(folder, format, layout.open(folder))


def link(source: Path, destination: Path) -> Manifest:
    """Put a checkpoint at a second path, after checking it, by reflinks or read-only hard links (`share`).

    The manifest is copied: its time is when this folder was made, which Snakemake looks at.
    """
    manifest = verify(source)
    with new_checkpoint(destination, 0) as folder:
        for name in manifest.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            share(source / name, folder / name)
        shutil.copyfile(source / MANIFEST, folder / MANIFEST)
    return manifest
