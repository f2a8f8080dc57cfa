"""Checkpoints of models that several processes hold parts of: each reads and writes its own.

No process ever holds the whole model, except where transformers keeps tensors in another form than the checkpoint does
(a mixture of experts): those are built whole in every process before they are spread.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from dagrpo.checkpoints.folder import copy_auxiliary, new_checkpoint, require_tokenizer, set_config_dtype
from dagrpo.checkpoints.formats.dcp import DcpTensors, write_weights
from dagrpo.checkpoints.gathered import GatheredWeights, is_in_checkpoint_form
from dagrpo.checkpoints.manifest import verify, write_manifest
from dagrpo.checkpoints.modules import build_model, dtype_of_model, empty_model, own_state
from dagrpo.checkpoints.source import format_of, open_tensors
from dagrpo.checkpoints.store import save_weights
from dagrpo.checkpoints.tensors import StateTensors, Tensors, total_bytes
from dagrpo.distributed import World


def load_sharded(
    folder: Path, dtype: torch.dtype, world: World, shard: Callable[[PreTrainedModel], None]
) -> PreTrainedModel:
    """The model of a checkpoint in any format; `shard` spreads the model it is given over the processes, in place.

    UserError, in the first process and before the others read anything: the folder is not what its manifest says.
    """
    if world.is_rank_zero:
        verify(folder)
        require_tokenizer(folder)
    world.barrier()
    tensors = open_tensors(folder)
    model = empty_model(folder, dtype)
    if not _holds_as_they_are(model, tensors):
        model = build_model(folder, {name: tensors.read(name) for name in tensors.specs}, dtype)
        shard(model)
        return model
    shard(model)
    _read_into(own_state(model), tensors)
    return model


def _holds_as_they_are(model: PreTrainedModel, tensors: Tensors) -> bool:
    """Whether a model's tensors are those of the checkpoint: names, shapes and, for all that transformers does, values."""
    shapes = {name: tuple(tensor.shape) for name, tensor in own_state(model).items()}
    return shapes == {name: spec.shape for name, spec in tensors.specs.items()} and is_in_checkpoint_form(model)


def _read_into(state: dict[str, Tensor], tensors: Tensors) -> None:
    if isinstance(tensors, DcpTensors):
        tensors.read_into(state)
        return
    for name, target in state.items():
        value = tensors.read(name).to(target.device, target.dtype)
        if isinstance(target, DTensor):  # every process reads the whole tensor and keeps its part
            value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
        target.copy_(value)


def save_sharded(model: PreTrainedModel, like: Path, destination: Path, world: World) -> None:
    """Write a model in the format of the checkpoint `like`, with its auxiliary files.

    In the format dcp every process writes its own parts; in the others the first one writes tensor after tensor.
    """
    dtype = dtype_of_model(model)
    if world.size > 1 and is_in_checkpoint_form(model) and format_of(like) == "dcp":
        _save_parts(model, dtype, like, destination, world)
        return

    def save(tensors: Tensors) -> None:
        save_weights(tensors, dtype, like, destination)

    GatheredWeights(model, dtype, world).hand_to(save)


def _save_parts(model: PreTrainedModel, dtype: torch.dtype, like: Path, destination: Path, world: World) -> None:
    state = own_state(model)
    with world.shared_folder(new_checkpoint(destination, total_bytes(StateTensors(state)))) as folder:
        if world.is_rank_zero:
            copy_auxiliary(like, verify(like), folder)
            set_config_dtype(folder, dtype)
        write_weights(folder, state)
        if world.is_rank_zero:
            write_manifest(folder, "dcp", DcpTensors(folder))
