"""Weight sync by buckets of tensors in memory, without files.

Each rank fills a bucket for the server on its GPU, which gets CUDA IPC handles; on a CPU, names of shared memory: HTTP carries a pickle of
about 1 KB, which we write, for a server that this training has started. SGLang reads it with an unpickler that knows a closed list of
classes.
"""

import base64
import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.tensors import Tensors, TensorSpec
from dagrpo.core.errors import UserError
from dagrpo.engine.sglang import BUCKET_BYTES
from dagrpo.utils.distributed import ALLOCATOR_VARIABLES
from dagrpo.utils.watched_process import MEMORY

_ALIGNMENT = 16  # bytes: of each tensor in a bucket, so that it can be viewed in its type
_COUNTER = slice(4, 6)  # places of what counts openings among the results of _share_cuda_
_DEVICE = 6  # place of the device among the arguments of reductions.rebuild_cuda_tensor


class SharedMemory:
    """Memory of this process that the server on its GPU, or on this CPU, opens: one bucket at a time, written once and never reused."""

    def __init__(self, device: torch.device | None = None) -> None:
        """Hold buckets on `device`; None: this process's."""
        self._device = sync_device(torch.cuda.is_available()) if device is None else device
        self._flat: Tensor | None = None  # [bytes], uint8

    def obstacle(self) -> str | None:
        """Return what keeps a server from opening it; None: nothing."""
        return obstacle_to_sharing(self._device)

    def hold(self, specs: Mapping[str, TensorSpec], read: Callable[[str], Tensor]) -> str | None:
        """Hold a bucket of these tensors, each read once and copied once, in place of the one before, which the server has closed.

        Return its handle in base64, for one server and one opening; None without tensors. torch counts the openings of a bucket on a
        GPU, and frees its memory when the server has finished its copies. Raises UserError if shared memory has no room for it.
        """
        self._flat = None
        if self._device.type == "cuda":
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call] # frees what the server has closed
        if not specs:
            return None
        starts, size = _places([*specs.values()])
        self._flat = _empty(size, self._device)
        for (name, spec), start in zip(specs.items(), starts, strict=True):
            target = self._flat[start : start + spec.bytes].view(spec.dtype).view(spec.shape)
            target.copy_(read(name).detach())
        parts = [_part(name, spec, start) for (name, spec), start in zip(specs.items(), starts, strict=True)]
        return _handle(self._flat, parts)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors side by side in one piece of memory, of each rank whose GPU a server has."""

    names: list[str]
    hold: Callable[[Sequence[str], Iterable[int]], Sequence[str | None]]
    each: int  # ranks of a server: GPUs that it divides its weights over
    is_last: bool

    def payloads(self, servers: Sequence[int]) -> list[list[str]]:
        """Fill it on the ranks of these servers alone; return each server's handles, by its own ranks, for one opening."""
        ranks = [range(self.each * server, self.each * (server + 1)) for server in servers]
        handles = self.hold(self.names, chain(*ranks))
        return [[handle for rank in own if (handle := handles[rank]) is not None] for own in ranks]

    def sent(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: servers open the memory."""
        return nullcontext()


def buckets(weights: Tensors, memory: SharedMemory, each: int = 1, most: int | None = None) -> Iterator[Bucket]:
    """Yield all tensors in order, in buckets of at most `most` bytes (None: 512 MiB), or of one larger tensor, for one at a time.

    Weights that ranks hold parts of are in the memory of the ranks, others in this process's `memory`. `each`: ranks of a server.
    """

    def hold_here(names: Sequence[str], ranks: Iterable[int]) -> list[str | None]:
        return [memory.hold({name: weights.specs[name] for name in names}, weights.read)]

    shared = held_by_ranks(weights)
    hold = hold_here if shared is None else shared.hold
    named = lots(weights.specs, BUCKET_BYTES if most is None else most)
    for number, names in enumerate(named):
        yield Bucket(names, hold, each, is_last=number == len(named) - 1)
    hold([], [])


def held_by_ranks(weights: Tensors | None) -> GatheredWeights | None:
    """Return weights whose ranks share memory with servers; None for any others."""
    return weights if isinstance(weights, GatheredWeights) and weights.sharing_ranks else None


def sync_device(gpu: bool) -> torch.device:
    """Return the device of buckets for servers that share this process's GPU, or its CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")


def obstacle_to_sharing(device: torch.device) -> str | None:
    """Return what keeps a server from opening memory of this device, which is tried on a GPU; None: nothing does.

    Memory of expandable segments is opened through pidfd_getfd, which Linux grants a child on its parent only where ptrace is
    unrestricted (kernel.yama.ptrace_scope 0).
    """
    if device.type == "cpu":
        return None
    if any("expandable_segments:True" in os.environ.get(name, "") for name in ALLOCATOR_VARIABLES):
        return "this process allocates expandable segments (PYTORCH_CUDA_ALLOC_CONF), which a server may not open"
    try:
        storage = torch.empty(1, dtype=torch.uint8, device=device).untyped_storage()
        shared = storage._share_cuda_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        return f"torch cannot share memory of this GPU, as with the allocator cudaMallocAsync or in WSL2 ({reason})"
    torch.UntypedStorage._release_ipc_counter_cuda(*shared[_COUNTER])  # else it would wait for a server that opens it
    return None


class _Reduced:
    """Tensor that is pickled as a call which opens it."""

    def __init__(self, rebuild: Callable[..., Tensor], arguments: tuple[Any, ...]) -> None:
        self._call = (rebuild, arguments)

    def __reduce__(self) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
        return self._call


def _handle(flat: Tensor, parts: list[SimpleNamespace]) -> str:
    """Return the pickle, in base64, that opens memory with these `parts`, as SGLang's FlattenedTensorMetadata describes each."""
    if flat.is_cuda:
        torch.cuda.synchronize(flat.device)
    reduced = _Reduced(*(_by_ipc if flat.is_cuda else _by_name)(flat))
    stream = io.BytesIO()
    ForkingPickler(stream).dump({"flattened_tensor": reduced, "metadata": parts})
    return base64.b64encode(stream.getvalue()).decode()


def _by_ipc(flat: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """Return torch's IPC call, with the GPU's UUID in place of its index."""
    rebuild, arguments = reductions.reduce_tensor(flat)  # type: ignore[no-untyped-call]
    uuid = str(torch.cuda.get_device_properties(flat.device).uuid)
    return rebuild, (*arguments[:_DEVICE], uuid, *arguments[_DEVICE + 1 :])


def _by_name(flat: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """Return the call that opens shared memory by name; by file descriptor, only a process's own children could open it."""
    storage = flat.untyped_storage()
    shared = storage._share_filename_cpu_()
    storage._shared_incref()  # type: ignore[no-untyped-call] # for the server, which gives it back when it closes the memory
    untyped = _Reduced(reductions.rebuild_storage_filename, (torch.UntypedStorage, *shared))
    typed = _Reduced(reductions.rebuild_typed_storage, (untyped, flat.dtype))
    metadata = (flat.storage_offset(), flat.size(), flat.stride(), False)
    return reductions.rebuild_tensor, (torch.Tensor, typed, metadata)


def _empty(size: int, device: torch.device) -> Tensor:
    """Return new memory; on a CPU it is shared from the start, so that sharing it copies nothing. Raises UserError if there is no room."""
    if device.type != "cpu":
        return torch.empty(size, dtype=torch.uint8, device=device)
    free = shutil.disk_usage(MEMORY).free  # what is mapped beyond it ends the process with SIGBUS
    if free < size:
        raise UserError(
            f"{MEMORY} has {free:,} bytes free, and a bucket of weights on its way to the engine takes {size:,}: make room, or set "
            "runtime.engine.weight_sync to folder."
        )
    storage = torch.UntypedStorage._new_using_filename_cpu(size)
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,))


def lots(specs: Mapping[str, TensorSpec], most: int) -> list[list[str]]:
    """Return the names of tensors by bucket, in order: `most` bytes in each, or one larger tensor."""
    found: list[list[str]] = []
    size = 0
    for name, spec in specs.items():
        taken = -(-spec.bytes // _ALIGNMENT) * _ALIGNMENT
        if not found or size + taken > most:
            found.append([])
            size = 0
        found[-1].append(name)
        size += taken
    return found


def _places(specs: list[TensorSpec]) -> tuple[list[int], int]:
    starts, end = [], 0
    for spec in specs:
        starts.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = starts[-1] + spec.bytes
    return starts, end


def _part(name: str, spec: TensorSpec, start: int) -> SimpleNamespace:
    shape = torch.Size(spec.shape)
    end = start + spec.bytes
    return SimpleNamespace(name=name, shape=shape, dtype=spec.dtype, start_idx=start, end_idx=end, numel=spec.bytes)
