"""The trainer's format: the layout of torch.distributed.checkpoint (DCP).

Each rank writes its chunks of tensors into a separate safetensors file; the chunks' positions in the whole tensor are in the file's
metadata, so that any number of ranks can read it back. This is the layout of torch's own
HuggingFaceStorageWriter(save_distributed=True) and HuggingFaceStorageReader, chosen over `.distcp` + `.metadata` because
those are pickles: here nothing read from a disk can run code. Only folders whose manifest verifies are opened.
No process group is needed.
"""

import json
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from dagrpo.checkpoints.file_plan import PlannedFile, write_hashed
from dagrpo.checkpoints.formats import CheckpointFormat
from dagrpo.checkpoints.safetensors_file import SafetensorsFile, plan_shards, planned_safetensors
from dagrpo.checkpoints.tensors import Tensors, TensorSpec
from dagrpo.checkpoints.weight_map import require_own
from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.utils.files import fsync_file
from dagrpo.utils.manifest import FileEntry


class StreamedStorageWriter(HuggingFaceStorageWriter):
    """A torch storage writer that writes bytes tensor by tensor and in a fixed order.

    torch's own collects all tensors of a file and writes its metadata in random order: twice the memory, unequal files.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(path=str(folder), save_distributed=True)
        self.files: dict[str, FileEntry] = {}  # of all ranks, in the one that coordinates them: rank 0

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors = _PlannedTensors(plan, planner)
        rank = plan.storage_data["shard_index"]
        path = Path(self.path) / _file_of_rank(rank)
        sha256 = write_hashed(path.parent, planned_safetensors(path.name, tensors, tensors.metadata()))
        fsync_file(path)  # by the process that wrote it: on a shared disk no other one can
        finished: Future[list[WriteResult]] = Future()
        finished.set_result(tensors.results((path.name, sha256, path.stat().st_size)))
        return finished

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        for name, sha256, length in {result.storage_data for of_rank in results for result in of_rank}:
            self.files[name] = FileEntry(sha256=sha256, bytes=length)


def _file_of_rank(rank: int, number: int = 1, count: int = 1) -> str:
    """Return torch's name for a rank's file: file 1 of 1 of this rank."""
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
        """Return the metadata that HuggingFaceStorageReader needs: the offset of each chunk in its whole tensor."""
        data = {name: item.tensor_data for name, item in self._items.items()}
        return _metadata({name: each.chunk.offsets for name, each in data.items() if each is not None})

    def results(self, file: tuple[str, str, int]) -> list[WriteResult]:
        """Return each tensor's result for rank 0: the name, sha256 and length of its file."""
        return [
            WriteResult(index=item.index, size_in_bytes=self.specs[name].bytes, storage_data=file)
            for name, item in self._items.items()
        ]


def _chunk_spec(item: WriteItem) -> TensorSpec:
    assert item.tensor_data is not None, f"{item.index.fqn} is not a tensor"
    return TensorSpec(dtype=item.tensor_data.properties.dtype, shape=tuple(item.tensor_data.chunk.sizes))


class DcpTensors:
    """The weights of a DCP folder, each assembled from the chunks of all ranks.

    Raises UserError if there are no weights, chunks overlap or lack their positions, or a tensor has a hole. (A missing file is found
    by the manifest.)
    """

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise UserError(f"{folder} has no weights (shard-*.safetensors): run the stage that makes it again.")
        for path in files:
            require_own(folder, path.name)
        opened = {str(path): SafetensorsFile(path) for path in files}
        self._reader = HuggingFaceStorageReader(str(folder))
        self._metadata = _read_metadata(folder, self._reader)
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        self.specs = dict(_whole_specs(folder, self._metadata))
        places = self._metadata.storage_data.items()
        files_of = Counter(index.fqn for index, _ in places)
        self._mapped = {index.fqn: opened[place.relative_path] for index, place in places if files_of[index.fqn] == 1}

    def read(self, name: str) -> Tensor:
        """Read a tensor, mapped if one file holds all of it. Raises no UserError: the files were checked before."""
        if name in self._mapped:
            return self._mapped[name].read(name)
        spec = self.specs[name]
        tensor = torch.empty(spec.shape, dtype=spec.dtype)
        self.read_into({name: tensor})
        return tensor

    def read_into(self, state: dict[str, Tensor]) -> None:
        """Fill tensors in place, in their own types; for a tensor sharded over processes, this one's part."""
        planner = DefaultLoadPlanner()
        planner.set_up_planner(dict(state), self._metadata, is_coordinator=True)
        self._reader.read_data(planner.create_local_plan(), planner).wait()


def _read_metadata(folder: Path, reader: HuggingFaceStorageReader) -> Metadata:
    try:
        return reader.read_metadata()
    except Exception:  # noqa: BLE001  the border to files of others: torch takes whatever they say of their chunks
        raise UserError(
            f"{folder} does not say where its tensors belong: copy or make that checkpoint again."
        ) from None


def _whole_specs(folder: Path, metadata: Metadata) -> Iterator[tuple[str, TensorSpec]]:
    """Yield each tensor's spec. torch checks no positions: where two chunks overlap, a hole is filled with arbitrary memory."""
    dtypes = defaultdict[str, set[torch.dtype]](set)
    for index, place in metadata.storage_data.items():
        dtypes[index.fqn].add(place.dtype)
    for name, stored in sorted(metadata.state_dict_metadata.items()):
        assert isinstance(stored, TensorStorageMetadata)
        spec = TensorSpec(dtype=stored.properties.dtype, shape=tuple(stored.size))
        if not _is_tiled(stored) or len(dtypes[name]) > 1:
            raise UserError(
                f"{folder} does not hold the tensor {brief(name)} exactly once, in one type: a rank's file is missing or foreign. "
                "Save the checkpoint again."
            )
        yield name, spec


def _is_tiled(stored: TensorStorageMetadata) -> bool:
    """Return True if the chunks fill their tensor and share no element."""
    axes, chunks = len(stored.size), stored.chunks
    if any(len(each.offsets) != axes or len(each.sizes) != axes or min(each.offsets, default=0) < 0 for each in chunks):
        return False
    filled = sum(math.prod(each.sizes) for each in chunks) == math.prod(stored.size)
    return filled and not any(_overlap(one, other) for one, other in combinations(chunks, 2))


def _overlap(one: ChunkStorageMetadata, other: ChunkStorageMetadata) -> bool:
    sides = zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    return all(a < b + m and b < a + n for a, n, b, m in sides)


def write_weights(
    folder: Path, state: dict[str, Tensor], group: torch.distributed.ProcessGroup | None = None
) -> dict[str, FileEntry]:
    """Write a state dict into a folder; every rank of a process group calls this with its own shards.

    `group`: of all ranks, for the collectives of this call; None: the default one.
    Returns the files of all ranks on rank 0; nothing on the others.
    """
    writer = StreamedStorageWriter(folder)
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # intended here
            save(state, storage_writer=writer, process_group=group, no_dist=not distributed)
    except CheckpointException as failure:  # a BaseException that hides the cause, such as a full disk
        raise next(iter(failure.failures.values()))[0] from failure
    return dict(sorted(writer.files.items()))


def planned_files(tensors: Tensors, max_shard_bytes: int) -> list[PlannedFile]:
    """Plan the files of weights held whole by one process. If one file is enough, it equals that of `write_weights`."""
    shards, files = plan_shards(tensors, max_shard_bytes), []
    for number, shard in enumerate(shards, start=1):
        metadata = _metadata({name: [0] * len(spec.shape) for name, spec in shard.specs.items()})
        files.append(planned_safetensors(_file_of_rank(1, number, len(shards)), shard, metadata))
    return files


def _metadata(offsets: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Return the metadata of a file whose chunks begin at these offsets of their tensors."""
    places = {name: {"saved_offsets": list(start)} for name, start in sorted(offsets.items())}
    return {"DCP_SHARDING_INFO": json.dumps(places), "DCP_VERSION": "1.0", "format": "pt"}


class Dcp(CheckpointFormat):
    """The trainer's format, which any number of processes reads and writes."""

    name = "dcp"
    own_files = ("*.safetensors",)

    def recognises(self, folder: Path) -> bool:
        return any(folder.glob("shard-*.safetensors"))

    def open(self, folder: Path, base: Path | None = None) -> DcpTensors:
        return DcpTensors(folder)

    def planned_files(self, described_by: Path, tensors: Tensors, max_shard_bytes: int) -> list[PlannedFile]:
        return planned_files(tensors, max_shard_bytes)


FORMAT = Dcp()
