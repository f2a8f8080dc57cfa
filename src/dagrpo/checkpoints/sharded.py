"""Checkpoints of models that several processes hold parts of: read part by part, gathered tensor by tensor.

No process ever holds the whole model, except where transformers keeps tensors in another form than the checkpoint does
(a mixture of experts): those are built whole in every process before they are spread.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from dagrpo.checkpoints.convert import save_weights
from dagrpo.checkpoints.dcp import DcpTensors, write_weights
from dagrpo.checkpoints.folder import copy_auxiliary, new_checkpoint, require_tokenizer, set_config_dtype
from dagrpo.checkpoints.manifest import verify, write_manifest
from dagrpo.checkpoints.modules import build_model, dtype_of_model, empty_model, in_checkpoint_form, own_state
from dagrpo.checkpoints.source import format_of, open_tensors
from dagrpo.checkpoints.tensors import StateTensors, Tensors, TensorSpec, total_bytes
from dagrpo.processes import Processes

_OWNERS_KEPT = 2  # of the weights of experts, two of the model's tensors are read in turns


def load_sharded(
    folder: Path, dtype: torch.dtype, processes: Processes, shard: Callable[[PreTrainedModel], None]
) -> PreTrainedModel:
    """The model of a checkpoint in any format; `shard` spreads the model it is given over the processes, in place.

    ValueError, in the first process and before the others read anything: the folder is not what its manifest says.
    """
    if processes.is_first:
        verify(folder)
        require_tokenizer(folder)
    processes.wait()
    tensors = open_tensors(folder)
    model = empty_model(folder, dtype)
    if not _has_shapes(own_state(model), tensors):
        model = build_model(folder, {name: tensors.read(name) for name in tensors.specs}, dtype)
        shard(model)
        return model
    shard(model)
    _read_into(own_state(model), tensors)
    return model


def _has_shapes(state: dict[str, Tensor], tensors: Tensors) -> bool:
    shapes = {name: spec.shape for name, spec in tensors.specs.items()}
    return shapes == {name: tuple(tensor.shape) for name, tensor in state.items()}


def _read_into(state: dict[str, Tensor], tensors: Tensors) -> None:
    if isinstance(tensors, DcpTensors):
        tensors.read_into(state)
        return
    for name, target in state.items():
        value = tensors.read(name).to(target.device, target.dtype)
        if isinstance(target, DTensor):  # every process reads the whole tensor and keeps its part
            value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
        target.copy_(value)


def save_sharded(model: PreTrainedModel, like: Path, destination: Path, processes: Processes) -> None:
    """Write a model in the format of the checkpoint `like`, with its auxiliary files.

    In the format dcp every process writes its own parts; in the others the first one writes tensor after tensor.
    """
    dtype = dtype_of_model(model)
    weights = _GatheredWeights(model, dtype, processes)
    if processes.count > 1 and weights.are_the_models_own and format_of(like) == "dcp":
        _save_parts(model, dtype, like, destination, processes)
        return

    def save(tensors: Tensors) -> None:
        save_weights(tensors, dtype, like, destination)

    _with(weights, processes, save)


def _save_parts(
    model: PreTrainedModel, dtype: torch.dtype, like: Path, destination: Path, processes: Processes
) -> None:
    state = own_state(model)
    with processes.shared_folder(new_checkpoint(destination, total_bytes(StateTensors(state)))) as folder:
        if processes.is_first:
            copy_auxiliary(like, verify(like), folder)
            set_config_dtype(folder, dtype)
        write_weights(folder, state)
        if processes.is_first:
            write_manifest(folder, "dcp", DcpTensors(folder))


def with_gathered_weights(
    model: PreTrainedModel, dtype: torch.dtype, processes: Processes, work: Callable[[Tensors], None]
) -> None:
    """Call `work` in the first process with the weights in `dtype` under their names in a checkpoint.

    It may read them in any order; each is gathered when it is read. The other processes give their parts meanwhile.
    """
    _with(_GatheredWeights(model, dtype, processes), processes, work)


def _with(weights: "_GatheredWeights", processes: Processes, work: Callable[[Tensors], None]) -> None:
    if not processes.is_first:
        weights.give()
        return
    try:
        work(weights)
    finally:
        processes.share(None)


class _GatheredWeights:
    """Tensors for the first process. ValueError: the model holds them in a form that cannot be undone one by one."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, processes: Processes) -> None:
        self._model = model
        self._dtype = dtype
        self._processes = processes
        self._state = own_state(model)
        self._owners, self.specs = self._described()
        self._kept: dict[str, dict[str, Tensor]] = {}

    @property
    def are_the_models_own(self) -> bool:
        """Whether the tensors of the checkpoint are those of the model."""
        return all(name == owner for name, owner in self._owners.items())

    def read(self, name: str) -> Tensor:
        owner = self._owners[name]
        if owner not in self._kept:
            while len(self._kept) >= _OWNERS_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._processes.share(owner)
            self._kept[owner] = in_checkpoint_form(self._model, {owner: self._whole(owner)})
        return self._kept[owner][name]

    def give(self) -> None:
        """The part of the other processes: one tensor after the other, as the first one asks."""
        while (owner := self._processes.share()) is not None:
            self._whole(owner)

    def _whole(self, owner: str) -> Tensor:
        tensor = self._state[owner].detach()
        if tensor.is_floating_point():
            tensor = tensor.to(self._dtype)
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def _described(self) -> tuple[dict[str, str], dict[str, TensorSpec]]:
        """Which of the model's tensors holds each tensor of the checkpoint, and what these are."""
        described = {owner: self._spec(tensor) for owner, tensor in self._state.items()}
        outlines = {o: torch.empty(s.shape, dtype=s.dtype, device="meta") for o, s in described.items()}
        whole = StateTensors(in_checkpoint_form(self._model, outlines)).specs
        if whole == described:
            return {name: name for name in whole}, described
        owners = {name: o for o, outline in outlines.items() for name in in_checkpoint_form(self._model, {o: outline})}
        if owners.keys() != whole.keys():
            raise ValueError(
                f"{type(self._model).__name__} joins tensors of its checkpoint: train it with training.processes 1."
            )
        return owners, whole

    def _spec(self, tensor: Tensor) -> TensorSpec:
        dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
        return TensorSpec(dtype=dtype, shape=tuple(tensor.shape))
