"""Checkpoints of models sharded over ranks.

Each rank reads and writes its own part. No rank ever holds the whole model, except if transformers keeps tensors in another form
than the checkpoint (a mixture of experts): every rank builds those whole before they are sharded.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from dagrpo.checkpoints.folder import copy_auxiliary, new_checkpoint, require_tokenizer, set_config_dtype
from dagrpo.checkpoints.formats.dcp import DcpTensors, write_weights
from dagrpo.checkpoints.gather import GatheredWeights, is_in_checkpoint_form
from dagrpo.checkpoints.lora_layers import adapter_files, low_rank_updates
from dagrpo.checkpoints.manifest import tensor_digest_of, verify, write_manifest
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.modules import build_model, dtype_of_model, empty_model, own_state
from dagrpo.checkpoints.source import format_of, open_tensors
from dagrpo.checkpoints.store import save_weights
from dagrpo.checkpoints.tensors import StateTensors, Tensors, total_bytes
from dagrpo.utils.distributed import World


def model_to_shard(folder: Path, dtype: torch.dtype, world: World) -> tuple[PreTrainedModel, Tensors | None]:
    """Return the model of a checkpoint in any format, and its weights if they can be read after sharding.

    With weights: the model is empty; shard it, then `read_weights`. Without (None): it holds them already; shard it.
    Raises UserError, on rank 0 and before the other ranks read anything, if the folder does not match its manifest.
    """
    if world.is_rank_zero:
        verify(folder)
        require_tokenizer(folder)
    world.barrier()
    tensors = open_tensors(folder)
    model = empty_model(folder, dtype)
    shapes = {name: tuple(tensor.shape) for name, tensor in own_state(model).items()}
    if shapes == {name: spec.shape for name, spec in tensors.specs.items()} and is_in_checkpoint_form(model):
        return model, tensors  # the same names and shapes, nothing fused or renamed
    return build_model(folder, {name: tensors.read(name) for name in tensors.specs}, dtype), None


def read_weights(model: PreTrainedModel, tensors: Tensors) -> None:
    """Fill a model, sharded or not, from the weights of `model_to_shard`. Every rank reads its own part."""
    state = own_state(model)
    if isinstance(tensors, DcpTensors):
        tensors.read_into(state)
        return
    for name, target in state.items():
        fill(target, tensors.read(name))


def fill(target: Tensor, value: Tensor) -> None:
    """Set a tensor that may be sharded over ranks: every rank has the whole value, and keeps its part."""
    value = value.to(target.device, target.dtype)
    if isinstance(target, DTensor):
        value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(value)


def save_sharded(model: PreTrainedModel, like: Path, destination: Path, world: World) -> None:
    """Write a model in the format of the checkpoint `like`, with its auxiliary files. Every rank calls this.

    In the format dcp every rank writes its own parts; in the others rank 0 writes tensor after tensor. A model with an adapter is
    always written by rank 0: the adapter merged into the weights, and also beside them.
    """
    dtype, is_adapted = dtype_of_model(model), bool(low_rank_updates(model))
    if world.size > 1 and not is_adapted and is_in_checkpoint_form(model) and format_of(like) == "dcp":
        _save_parts(model, dtype, like, destination, world)
        return

    adapter = adapter_files(model, tensor_digest_of(like))
    weights = GatheredWeights(model, dtype, world)
    if world.is_rank_zero:
        with weights.reading() as tensors:
            save_weights(tensors, dtype, like, destination, adapter)
    else:
        weights.give_parts()


def _save_parts(model: PreTrainedModel, dtype: torch.dtype, like: Path, destination: Path, world: World) -> None:
    state = own_state(model)
    with world.shared_folder(new_checkpoint(destination, total_bytes(StateTensors(state)))) as folder:
        if world.is_rank_zero:
            copy_auxiliary(like, verify(like), folder)
            set_config_dtype(folder, dtype)
        write_weights(folder, state)
        if world.is_rank_zero:
            write_manifest(folder, "dcp", DcpTensors(folder))
