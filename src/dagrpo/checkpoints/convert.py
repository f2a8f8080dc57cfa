"""From any checkpoint format to any other, exactly; and models in whichever format a checkpoint has."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dagrpo.checkpoints import dcp, hf
from dagrpo.checkpoints.folder import (
    copy_files,
    new_checkpoint,
    require_format,
    require_tokenizer,
    set_config_dtype,
)
from dagrpo.checkpoints.manifest import (
    Format,
    Manifest,
    describe,
    verify,
    verify_listing,
    write_manifest,
)
from dagrpo.checkpoints.megatron import folder as megatron
from dagrpo.checkpoints.source import Source, open_as, open_source, open_tensors
from dagrpo.checkpoints.tensors import StateTensors, Tensors, first_difference, total_bytes
from dagrpo.files import fsync_file
from dagrpo.params.checkpoint import Checkpoint

if TYPE_CHECKING:  # transformers is imported where a model is made: converting needs none of it
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def convert(source: Path, destination: Path, params: Checkpoint) -> Manifest:
    """Hugging Face layout -> the trainer's format. ValueError: `source` is not whole, or not in that layout."""
    require_format(source, verify_listing(source), "huggingface")
    require_tokenizer(source)
    return write_as(params.format, open_source(source), destination, params.max_shard_bytes)


def export(source: Path, destination: Path, params: Checkpoint) -> Manifest:
    """The trainer's format -> Hugging Face layout, in shards of at most `params.max_shard_bytes`."""
    require_format(source, verify_listing(source), params.format)
    require_tokenizer(source)
    return write_as("huggingface", open_source(source), destination, params.max_shard_bytes)


def write_as(format: Format, source: Source, destination: Path, max_shard_bytes: int) -> Manifest:
    """Write a checkpoint in another format. Names, types and bytes of all tensors stay, or it is an error.

    The bytes of the source are checked while they are copied, and the copy reaches the disk while it is read back.
    """
    needed = total_bytes(source.tensors) + sum(path.stat().st_size for path in source.files.values())
    with new_checkpoint(destination, needed) as folder, ThreadPoolExecutor(2) as threads:
        summary = threads.submit(source.summary)
        copy_files(source.files, folder)
        write_tensors(format, folder, source.tensors, max_shard_bytes)
        on_disk = threads.submit(_fsync_all, sorted(path for path in folder.rglob("*") if path.is_file()))
        changed = threads.submit(first_difference, source.tensors, open_as(format, folder))
        written = describe(folder, format, summary)
        difference = changed.result()
        assert difference is None, f"the conversion changed {difference}"
        on_disk.result()
    return written


def _fsync_all(files: list[Path]) -> None:
    for file in files:
        fsync_file(file)


def write_tensors(format: Format, folder: Path, tensors: Tensors, max_shard_bytes: int) -> None:
    """Write weights into a folder that has its other files already. DCP: one file for this one process."""
    match format:
        case "huggingface":
            hf.write_weights(folder, tensors, max_shard_bytes)
        case "dcp":
            dcp.write_tensors(folder, tensors)
        case "megatron":
            megatron.write_tensors(folder, tensors, max_shard_bytes)


def load_model(folder: Path, dtype: torch.dtype) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """(model, tokenizer) of a checkpoint in any format, after checking it against its manifest, in eval mode."""
    from dagrpo.checkpoints.modules import build_model, load_tokenizer

    verify(folder)
    require_tokenizer(folder)
    tensors = open_tensors(folder)
    state = {name: tensors.read(name) for name in tensors.specs}
    return build_model(folder, state, dtype), load_tokenizer(folder)


def save_model(model: "PreTrainedModel", like: Path, destination: Path) -> Manifest:
    """Write a model in the format of the checkpoint `like`, with its auxiliary files."""
    from dagrpo.checkpoints.modules import dtype_of_model, state_of

    return save_weights(StateTensors(state_of(model)), dtype_of_model(model), like, destination)


def save_weights(tensors: Tensors, dtype: torch.dtype, like: Path, destination: Path) -> Manifest:
    """The same with the weights of a model in `dtype`, read one by one."""
    origin = verify(like)
    with new_checkpoint(destination, total_bytes(tensors)) as folder:
        copy_files(open_source(like).files, folder)
        set_config_dtype(folder, dtype)
        write_tensors(origin.format, folder, tensors, hf.DEFAULT_MAX_SHARD_BYTES)
        return write_manifest(folder, origin.format, open_as(origin.format, folder))
