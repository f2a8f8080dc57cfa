"""From any checkpoint format to any other, exactly; and models in whichever format a checkpoint has."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dagrpo import console
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
    save_manifest,
    verify,
    verify_listing,
    write_manifest,
)
from dagrpo.checkpoints.megatron import folder as megatron
from dagrpo.checkpoints.megatron.config import load_config
from dagrpo.checkpoints.megatron.recipe_script import script_beside
from dagrpo.checkpoints.megatron.recipes import recipe_of_itself
from dagrpo.checkpoints.planned import PlannedFile, planned_copy, write_all
from dagrpo.checkpoints.resume import resumable_checkpoint
from dagrpo.checkpoints.source import Source, open_as, open_source, open_tensors
from dagrpo.checkpoints.tensors import StateTensors, Tensors, first_difference, total_bytes
from dagrpo.errors import UserError
from dagrpo.files import digest_of, sha256_of
from dagrpo.params.checkpoint import Checkpoint

if TYPE_CHECKING:  # transformers is imported where a model is made: converting needs none of it
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def convert(source: Path, destination: Path, params: Checkpoint) -> Manifest:
    """Hugging Face layout -> the trainer's format. UserError: `source` is not whole, or not in that layout.

    Beside Megatron's format lies the command line of a recipe for models of these sizes, where there is one.
    """
    require_format(source, verify_listing(source), "huggingface")
    require_tokenizer(source)
    recipe = recipe_of_itself(load_config(source)) if params.format == "megatron" else None
    with script_beside(open_source(source), recipe) as whole:
        return write_as(params.format, whole, destination, params.max_shard_bytes)


def export(source: Path, destination: Path, params: Checkpoint) -> Manifest:
    """The trainer's format -> Hugging Face layout, in shards of at most `params.max_shard_bytes`."""
    require_format(source, verify_listing(source), params.format)
    require_tokenizer(source)
    return write_as("huggingface", open_source(source), destination, params.max_shard_bytes)


def write_as(format: Format, source: Source, destination: Path, max_shard_bytes: int) -> Manifest:
    """Write a checkpoint in another format. Names, types and bytes of all tensors stay, or it is an error.

    Goes on where the same conversion was killed. The bytes of the source are checked while they are copied.
    """
    files = [
        *(planned_copy(name, path) for name, path in source.files.items()),
        *_planned_weights(format, source.home, source.tensors, max_shard_bytes),
    ]
    making = digest_of([format, max_shard_bytes, source.identity(), _code()])
    with resumable_checkpoint(destination, files, making) as unfinished, ThreadPoolExecutor(1) as thread:
        summary = thread.submit(source.summary)
        if unfinished.resumed:
            console.say(f"{destination}: {unfinished.resumed} of {len(files)} files are there already.")
        with console.progress(f"convert to {format}", len(files)) as shown:
            unfinished.write(shown)
            _require_the_same(source, open_as(format, unfinished.folder), unfinished.resumed > 0)
            written = Manifest(format=format, files=unfinished.settle(), tensors=summary.result())
        save_manifest(unfinished.folder, written)
    return written


def _require_the_same(source: Source, written: Tensors, resumed: bool) -> None:
    difference = first_difference(source.tensors, written)
    if difference is not None and resumed:
        raise UserError(
            f"{difference} as an earlier run wrote it is not that of {source.folder}: what that run wrote is removed, "
            "run the same again."
        )
    assert difference is None, f"the conversion changed {difference}"


def _code() -> dict[str, str]:
    """What the bytes of a file depend on beside its content."""
    package = Path(__file__).parent
    modules = {str(path.relative_to(package)): sha256_of(path) for path in package.rglob("*.py")}
    return modules | {"torch": torch.__version__}


def write_tensors(format: Format, folder: Path, tensors: Tensors, max_shard_bytes: int) -> None:
    """Write weights into a folder that has its other files already."""
    write_all(folder, _planned_weights(format, folder, tensors, max_shard_bytes))


def _planned_weights(format: Format, described_by: Path, tensors: Tensors, max_shard_bytes: int) -> list[PlannedFile]:
    """The files of the weights. `described_by` is a folder with the config.json."""
    match format:
        case "huggingface":
            return hf.planned_files(tensors, max_shard_bytes)
        case "dcp":
            return dcp.planned_files(tensors, max_shard_bytes)
        case "megatron":
            return megatron.planned_files(described_by, tensors, max_shard_bytes)


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
