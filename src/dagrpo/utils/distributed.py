"""Processes that train one policy together, or a single process.

`dagrpo.pipeline.launch` starts them. They exchange JSON and tensors, never a pickle.
"""

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (  # torch.distributed, for which no types are declared
    FileStore,
    PrefixStore,
    TCPStore,
)

from dagrpo.core.errors import TransientError, UserError
from dagrpo.utils.determinism import add_up_in_one_order
from dagrpo.utils.environment import environment
from dagrpo.utils.files import digest_of, sha256_of
from dagrpo.utils.portable import multiply_portably

# The ranks wait on gloo while rank 0 samples, grades or writes, which may take hours; when one dies, the launcher ends all.
LONGEST_WAIT_FOR_RANK_ZERO = timedelta(days=7)
# A collective among devices that takes longer than this hangs: an error must free the node.
LONGEST_COLLECTIVE = timedelta(minutes=30)
RENDEZVOUS = (
    "DAGRPO_RENDEZVOUS"  # how the processes of one launch find each other: a private file, or tcp://address:port
)
TCP = "tcp://"
_BROKEN = re.compile(
    r"gloo.*(closed by peer|reset by peer|Timed out|timeout)|nccl.*(remote process exit|network error)",
    re.IGNORECASE | re.DOTALL,
)
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_DTYPES = {
    str(dtype): dtype for dtype in (torch.int64, torch.int32, torch.float32, torch.bool, torch.uint8)
}  # of tensors that are broadcast


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Process group as seen from this process.

    The methods that communicate are collectives: every rank calls them, in the same order. With one process they cost
    nothing.
    """

    rank: int
    size: int
    device: torch.device
    patient: dist.ProcessGroup | None = None  # of gloo, for collectives that may wait for rank 0; None with one process
    copies: int = 1  # of the policy, each sharded over as many ranks: one, or one on each node

    @property
    def ranks_here(self) -> int:
        """Return the number of ranks on each machine; the first machine has the first ones."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    @property
    def is_rank_zero(self) -> bool:
        """Return True for rank 0, which samples, grades, records and writes; the others only compute."""
        return self.rank == 0

    def broadcast(self, value: Any = None) -> Any:
        """Return rank 0's value in every rank. It must be JSON-serialisable; the values of the other ranks are ignored."""
        if self.size == 1:
            return value
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor([content.numel()])
        dist.broadcast(length, src=0, group=self.patient)
        if not self.is_rank_zero:
            content = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(content, src=0, group=self.patient)
        return json.loads(content.numpy().tobytes())

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Return rank 0's tensors, on the CPU, in every rank; the other ranks pass None."""
        assert (tensors is not None) == self.is_rank_zero
        own = dict(tensors or {})
        if self.size == 1:
            return own
        described = self.broadcast([[name, str(t.dtype), list(t.shape)] for name, t in own.items()])
        for name, dtype, shape in described:
            tensor = own[name].contiguous() if self.is_rank_zero else torch.empty(shape, dtype=_DTYPES[dtype])
            dist.broadcast(tensor, src=0, group=self.patient)
            own[name] = tensor
        return own

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in every rank. They must be JSON-serialisable."""
        if self.size == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = own.numel()
        counts = self.all_reduce(lengths).tolist()
        joined = torch.zeros(sum(counts), dtype=torch.uint8)
        parts = torch.split(joined, counts)
        parts[self.rank].copy_(own)
        self.all_reduce(joined)
        return [json.loads(part.numpy().tobytes()) for part in parts]

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks, in every rank; `values` is overwritten. On the CPU, or on this rank's device."""
        if self.size > 1:
            dist.all_reduce(values, group=self.patient if values.device.type == "cpu" else None)
        return values

    def everywhere(self, holds: bool) -> bool:
        """Return True, in every rank, if `holds` is True in every rank."""
        return float(self.all_reduce(torch.tensor(float(holds)))) == self.size

    def barrier(self) -> None:
        """Return when every rank has called this."""
        self.all_reduce(torch.zeros(1))

    def free_cached(self) -> None:
        """Return every rank's cached GPU memory to its GPU, which a server may share; wait for all ranks."""
        torch.cuda.empty_cache()
        self.barrier()

    def of_another_thread(self) -> "World":
        """Return the same ranks for another thread, whose collectives on the CPU cannot mix with those of this one."""
        return self if self.size == 1 else replace(self, patient=_patient_group())

    @contextmanager
    def shared_folder(self, opened: AbstractContextManager[Path]) -> Iterator[Path]:
        """Yield the folder that rank 0 opens, on a disk that all ranks can write to; close it when all have filled it."""
        if not self.is_rank_zero:
            yield Path(self.broadcast())
            self.barrier()
            return
        with opened as folder:
            self.broadcast(str(folder))
            yield folder
            self.barrier()


def single_process() -> World:
    """Return the world of a run that is not distributed."""
    return World(rank=0, size=1, device=_device())


@contextmanager
def process_group(threads: int = 1, *, deterministic: bool = False, copies: int = 1) -> Iterator[World]:
    """Yield the world that this process was launched in, or that of one process. Each process computes with `threads` threads.

    `deterministic`: GPUs add up in the same order each time (rollout.deterministic). `copies`: of the policy, each
    shared by ranks that follow one another (HSDP): one for all, or one for each node.

    Raises UserError if there are GPUs, but fewer than ranks, or if another launcher has started the ranks, whose store may be
    anyone's; TransientError if the connection to another rank breaks.
    """
    multiply_portably()
    torch.set_num_threads(threads)  # by itself torch would take fewer where this process has fewer cores
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield single_process()
        return
    device = _device()
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"  # gloo for what is on the CPU
    # With its device NCCL connects the ranks at once, and not in the middle of the first collective.
    own = device if device.type == "cuda" else None
    if own is not None and deterministic:
        add_up_in_one_order()
    with _connected(size, backend, own):
        yield _with_one_software(
            World(rank=dist.get_rank(), size=size, device=device, patient=_patient_group(), copies=copies)
        )


@contextmanager
def node_group() -> Iterator[World]:
    """Yield the world of the processes that this one was launched with, one on each node; they only talk, and leave GPUs to others."""
    size, cpu = int(os.environ.get("WORLD_SIZE", "1")), torch.device("cpu")
    if size == 1:
        yield World(rank=0, size=1, device=cpu)
        return
    with _connected(size, "gloo", None):
        yield _with_one_software(World(rank=dist.get_rank(), size=size, device=cpu, patient=_patient_group()))


def _with_one_software(world: World) -> World:
    """Return the world of several nodes. Raises UserError, in every rank, for code, Python or torch that differs from rank 0's."""
    if world.size > world.ranks_here:
        first, *others = world.gather(own_software())
        for rank, other in enumerate(others, start=1):
            if other != first:
                raise UserError(f"rank {rank} has {other}; rank 0 has {first}: use the same environment on all nodes.")
    return world


def own_software() -> str:
    """Return the digest of this machine's dagrpo, and the versions that its part of a training follows from."""
    package = Path(__file__).parents[1]
    digest = digest_of({str(file.relative_to(package)): sha256_of(file) for file in sorted(package.rglob("*.py"))})
    versions = {name: version for name, version in environment(on_gpu=False).items() if name != "device"}
    return ", ".join(f"{name} {version}" for name, version in {"dagrpo": digest[:16], **versions}.items())


@contextmanager
def _connected(size: int, backend: str, device: torch.device | None) -> Iterator[None]:
    rank, store = int(os.environ["RANK"]), _rendezvous(size)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=LONGEST_COLLECTIVE, device_id=device
    )
    with _broken_connections_named():
        yield
    dist.destroy_process_group()  # only on success: after an error the others may never come, and the launcher ends them


@contextmanager
def _broken_connections_named() -> Iterator[None]:
    """Raise TransientError for a connection that breaks when another rank ends. The launcher says which one it was."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistNetworkError | dist.DistStoreError) or _BROKEN.search(str(error))):
            raise
        raise TransientError("Another process of this training has ended, or its machine cannot be reached.") from error


def _patient_group() -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=LONGEST_WAIT_FOR_RANK_ZERO)
    return group


def listening_store(address: str, port: int, timeout: timedelta) -> tuple[Any, int]:
    """Return a store that listens at an address of this machine alone, and its port; `port` 0: a free one.

    Raises OSError if that cannot be opened. It ends when nothing refers to it.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address, port))
    except OSError:
        listening.close()
        raise
    listening.listen()
    port = int(listening.getsockname()[1])
    descriptor = listening.detach()
    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=descriptor,
        timeout=timeout,
        multi_tenant=True,  # further stores of this process at the port, as of torchrun's agent, use this server
    ), port


def first_address() -> str:
    """Return the first node's address, of a training on several."""
    return os.environ[RENDEZVOUS].removeprefix(TCP).rpartition(":")[0]


def expand_segments() -> None:
    """Let this process's GPU memory segments grow in place, so that batches of varying lengths do not fragment it.

    Does nothing if the user has configured the allocator. Torch's own setting is changed, as servers would inherit an environment
    variable. Such memory cannot be shared by CUDA IPC (see engine/sglang/tensor_sync.py).
    """
    if torch.cuda.is_available() and not any(name in os.environ for name in ALLOCATOR_VARIABLES):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def _rendezvous(size: int) -> Any:  # a store of torch.distributed
    file = os.environ.get(RENDEZVOUS)
    if file is None:
        raise UserError(
            f"WORLD_SIZE is {size}, but dagrpo has not started this process: unset WORLD_SIZE, and say how many "
            "processes train in runtime.training.processes."
        )
    if file.startswith(TCP):
        host, _, port = file.removeprefix(TCP).rpartition(":")
        store: Any = PrefixStore("ranks", TCPStore(host, int(port), wait_for_workers=False))
    else:
        store = FileStore(file, size)
    store.set_timeout(LONGEST_COLLECTIVE)
    return store


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    processes, devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if processes > devices:  # in every rank, so that rank 0 reports it
        raise UserError(
            f"runtime.training.processes is {processes}, but this machine has {devices} GPUs, one for each: set it to {devices}."
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device
