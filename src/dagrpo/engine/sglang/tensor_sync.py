"""Weight sync by buckets of tensors in memory, without files.

A server on the trainer's GPU gets CUDA IPC handles, one on a CPU names of shared memory: HTTP carries a pickle of about 1 KB, which
we write, for a server that this process has started. SGLang reads it with an unpickler that knows a closed list of classes.
"""

import base64
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from dagrpo.checkpoints.tensors import Tensors, TensorSpec
from dagrpo.core.errors import UserError
from dagrpo.engine.sglang import BUCKET_BYTES
from dagrpo.utils.distributed import ALLOCATOR_VARIABLES
from dagrpo.utils.shared_memory import MEMORY

_ALIGNMENT = 16  # bytes: of each tensor in a bucket, so that it can be viewed in its type
_COUNTER = slice(4, 6)  # places of what counts openings among the results of _share_cuda_
_DEVICE = 6  # place of the device among the arguments of reductions.rebuild_cuda_tensor


@dataclass(frozen=True, slots=True)
class Bucket:
    """Bucket of tensors side by side in one piece of memory, which is written once and never reused."""

    flat: Tensor  # [bytes], uint8
    parts: tuple[SimpleNamespace, ...]  # what SGLang's FlattenedTensorMetadata holds, of each tensor
    is_last: bool

    def payload(self) -> str:
        """Return the bucket's handle for one server, in base64; each call is good for one server and one opening.

        torch counts the openings of a bucket on a GPU, and frees its memory when the server has finished its copies.
        """
        if self.flat.is_cuda:
            torch.cuda.synchronize(self.flat.device)
        reduced = _Reduced(*(_by_ipc if self.flat.is_cuda else _by_name)(self.flat))
        stream = io.BytesIO()
        ForkingPickler(stream).dump({"flattened_tensor": reduced, "metadata": [*self.parts]})
        return base64.b64encode(stream.getvalue()).decode()

    def sent(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: servers open the memory."""
        return nullcontext()


def buckets(weights: Tensors, device: torch.device, most: int | None = None) -> Iterator[Bucket]:
    """Yield all tensors in order, each read once and copied once, in buckets of at most `most` bytes (None: 512 MiB), or of one
    larger tensor. Raises UserError if shared memory has no room for one.
    """
    named = lots(weights.specs, BUCKET_BYTES if most is None else most)
    for number, names in enumerate(named):
        starts, size = _places([weights.specs[name] for name in names])
        flat = _empty(size, device)
        for name, start in zip(names, starts, strict=True):
            spec = weights.specs[name]
            target = flat[start : start + spec.bytes].view(spec.dtype).view(spec.shape)
            target.copy_(weights.read(name).detach())
        parts = tuple(_part(name, weights.specs[name], start) for name, start in zip(names, starts, strict=True))
        yield Bucket(flat, parts, is_last=number == len(named) - 1)


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
    """Return the first byte of each tensor, and the size of all."""
    starts, end = [], 0
    for spec in specs:
        starts.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = starts[-1] + spec.bytes
    return starts, end


def _part(name: str, spec: TensorSpec, start: int) -> SimpleNamespace:
    shape = torch.Size(spec.shape)
    end = start + spec.bytes
    return SimpleNamespace(name=name, shape=shape, dtype=spec.dtype, start_idx=start, end_idx=end, numel=spec.bytes)
