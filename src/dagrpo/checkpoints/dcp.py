"""Checkpoints in the layout of torch.distributed.checkpoint (DCP): what the trainer reads and writes.

Each rank writes the chunks of tensors that it holds into a safetensors file of its own; the chunks' places in the whole
tensor are in the file's metadata, so that any number of ranks can read it back. This is the layout of torch's own
HuggingFaceStorageWriter(save_distributed=True) and HuggingFaceStorageReader, chosen over `.distcp` + `.metadata` because
those are pickles: here nothing read from a disk can run code. Only folders whose manifest verifies are opened.
No process group is needed.
"""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import STORAGE_TYPES, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from dagrpo.checkpoints.folder import (
    copy_auxiliary,
    new_checkpoint,
    require_format,
    require_tokenizer,
    set_config_dtype,
)
from dagrpo.checkpoints.manifest import Manifest, verify, write_manifest
from dagrpo.checkpoints.planned import PlannedFile
from dagrpo.checkpoints.safetensors_file import plan_shards, planned_safetensors, write_safetensors
from dagrpo.checkpoints.tensors import StateTensors, Tensors, TensorSpec, total_bytes

if TYPE_CHECKING:  # transformers is imported where a model is made: reading and writing tensors needs none of it
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class StreamedStorageWriter(HuggingFaceStorageWriter):
    """torch's writer, with the bytes written tensor by tensor and in a fixed order.

    torch collects all tensors of a file and writes its metadata in random order: twice the memory, unequal files.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(path=str(folder), save_distributed=True)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors = _PlannedTensors(plan, planner)
        rank = plan.storage_data["shard_index"]
        path = Path(self.path) / _file_of_rank(rank)
        write_safetensors(path, tensors, tensors.metadata())
        finished: Future[list[WriteResult]] = Future()
        finished.set_result(tensors.results(path.name))
        return finished


def _file_of_rank(rank: int, number: int = 1, count: int = 1) -> str:
    """The name that torch gives: file 1 of 1 of this rank."""
    return f"shard-{rank:05d}-model-{number:05d}-of-{count:05d}.safetensors"


class _PlannedTensors:
    """The chunks of tensors that one rank is to write."""

    def __init__(self, plan: SavePlan, planner: SavePlanner) -> None:
        self._planner = planner
        self._items: dict[str, WriteItem] = {item.index.fqn: item for item in plan.items}
        assert len(self._items) == len(plan.items), "a rank holds two chunks of one tensor"
        self.specs = {name: _chunk_spec(item) for name, item in self._items.items()}

    def read(self, name: str) -> Tensor:
        tensor = self._planner.resolve_data(self._items[name])
        assert isinstance(tensor, Tensor)
        return tensor

    def metadata(self) -> dict[str, str]:
        """What HuggingFaceStorageReader looks for: where in the whole tensor each chunk begins."""
        offsets = {}
        for name, item in sorted(self._items.items()):
            assert item.tensor_data is not None
            offsets[name] = {"saved_offsets": list(item.tensor_data.chunk.offsets)}
        return {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}

    def results(self, file: str) -> list[WriteResult]:
        return [
            WriteResult(index=item.index, size_in_bytes=self.specs[name].bytes, storage_data=file)
            for name, item in self._items.items()
        ]


def _chunk_spec(item: WriteItem) -> TensorSpec:
    assert item.tensor_data is not None, f"{item.index.fqn} is not a tensor"
    return TensorSpec(dtype=item.tensor_data.properties.dtype, shape=tuple(item.tensor_data.chunk.sizes))


class DcpTensors:
    """The weights of a DCP folder, each put together from the chunks of all ranks.

    ValueError: no weights, or a tensor with a hole. (The manifest tells of a missing file.)
    """

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ValueError(f"{folder} has no weights (shard-*.safetensors): run the stage that makes it again.")
        self._reader = HuggingFaceStorageReader(str(folder))
        self._metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        self.specs = {
            name: _whole_spec(folder, name, stored)
            for name, stored in sorted(self._metadata.state_dict_metadata.items())
        }

    def read(self, name: str) -> Tensor:
        """Raises nothing of its own: the files were checked before."""
        spec = self.specs[name]
        tensor = torch.empty(spec.shape, dtype=spec.dtype)
        planner = DefaultLoadPlanner()
        planner.set_up_planner({name: tensor}, self._metadata, is_coordinator=True)
        self._reader.read_data(planner.create_local_plan(), planner).wait()
        return tensor


def _whole_spec(folder: Path, name: str, stored: STORAGE_TYPES) -> TensorSpec:
    assert isinstance(stored, TensorStorageMetadata)
    spec = TensorSpec(dtype=stored.properties.dtype, shape=tuple(stored.size))
    if sum(chunk.sizes.numel() for chunk in stored.chunks) != spec.numel:
        raise ValueError(f"{folder} lacks a part of the tensor {name}: a rank's file is missing, make it again.")
    return spec


def write_weights(folder: Path, state: dict[str, Tensor]) -> None:
    """Write a state dict into a folder; every rank of a process group calls this with its own shards."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as it is meant to be
            save(state, storage_writer=StreamedStorageWriter(folder), no_dist=not distributed)
    except CheckpointException as failure:  # a BaseException that hides what happened, such as a full disk
        raise next(iter(failure.failures.values()))[0] from failure


def planned_files(tensors: Tensors, max_shard_bytes: int) -> list[PlannedFile]:
    """The files of weights that one process holds all of. Where one is enough, it is that of `write_weights`."""
    shards = plan_shards(tensors, max_shard_bytes)
    return [
        planned_safetensors(_file_of_rank(1, number, len(shards)), shard, _metadata_of_whole(shard))
        for number, shard in enumerate(shards, start=1)
    ]


def _metadata_of_whole(tensors: Tensors) -> dict[str, str]:
    """Every tensor begins at its own beginning."""
    offsets = {name: {"saved_offsets": [0] * len(spec.shape)} for name, spec in sorted(tensors.specs.items())}
    return {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}


def load_model(folder: Path, dtype: torch.dtype) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """(model, tokenizer) of a DCP checkpoint, after checking it against its manifest. The model is in eval mode."""
    from dagrpo.checkpoints.modules import build_model, load_tokenizer

    require_format(folder, verify(folder), "dcp")
    require_tokenizer(folder)
    tensors = DcpTensors(folder)
    state = {name: tensors.read(name) for name in tensors.specs}
    return build_model(folder, state, dtype), load_tokenizer(folder)


def save_model(model: "PreTrainedModel", like: Path, destination: Path) -> Manifest:
    """Write a model as a DCP checkpoint, with the auxiliary files of the checkpoint `like`."""
    from dagrpo.checkpoints.modules import dtype_of_model, state_of

    origin = verify(like)
    state = state_of(model)
    with new_checkpoint(destination, total_bytes(StateTensors(state))) as folder:
        copy_auxiliary(like, origin, folder)
        set_config_dtype(folder, dtype_of_model(model))
        write_weights(folder, state)
        return write_manifest(folder, "dcp", DcpTensors(folder))
