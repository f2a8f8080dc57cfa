"""Weight sync of servers on other nodes by broadcasts of buckets (SGLang's update_weights_from_distributed).

The trainer is rank 0 of a separate process group, NCCL's on a GPU, else gloo's; the ranks of the servers are the others.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # for which torch.distributed declares no types
from torch.distributed.distributed_c10d import GroupName, _new_process_group_helper, _world

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.engine.errors import ServerAway
from dagrpo.engine.sglang import BUCKET_BYTES
from dagrpo.engine.sglang.tensor_sync import lots
from dagrpo.utils.distributed import listening_store

_NUMBERS = count()
SECONDS_TO_END = 5.0  # of work that was aborted


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastBucket:
    """Tensors of one broadcast, side by side: the larger types first, so that each is aligned."""

    flat: Tensor  # [bytes], uint8
    described: Mapping[str, Any]  # names, dtypes and shapes, as the request has them
    is_last: bool
    group: "BroadcastGroup"

    def payloads(self, servers: Sequence[int]) -> list[Mapping[str, Any]]:
        """Return the fields of the request with which each server waits for the broadcast."""
        return [self.described] * len(servers)

    @contextmanager
    def sent(self) -> Iterator[None]:
        """Broadcast it while the block asks the servers to receive it. Raises ServerAway if one of them is gone."""
        with _beside(lambda: self.group.broadcast(self.flat), self.group.abort):
            yield


class BroadcastGroup:
    """Process group of the trainer and the servers of one weight sync after the other."""

    def __init__(self, address: str, device: torch.device, seconds: float, ranks_each: int = 1) -> None:
        """Prepare groups. `address`: this machine's towards the servers; `device`: the buckets'; `seconds`: the limit of a broadcast.

        `ranks_each`: of a server.
        """
        self._ranks_each = ranks_each
        self._address, self._device, self._limit = address, device, timedelta(seconds=seconds)
        self._group: dist.ProcessGroup | None = None
        self._name = ""
        self._store: Store | None = None  # of the present group; it ends when nothing refers to it

    @contextmanager
    def formed(self, servers: int) -> Iterator[Mapping[str, Any]]:
        """Form a new group with `servers` servers, which the block asks to join by the yielded fields, and end the one before."""
        if (former := self.abort()) is not None:
            dist.destroy_process_group(former)
        ranks = servers * self._ranks_each
        name, backend = f"dagrpo-{next(_NUMBERS)}", "nccl" if self._device.type == "cuda" else "gloo"
        self._store, port = listening_store(self._address, 0, self._limit)
        fields = {"master_address": self._address, "master_port": port, "world_size": ranks + 1}

        # A connection ends with the store: a thread that torch wakes while the interpreter ends would abort the process.
        store = TCPStore(self._address, port, is_master=False, wait_for_workers=False, timeout=self._limit)

        def join() -> None:
            group, _ = _new_process_group_helper(
                ranks + 1,
                0,
                [],
                dist.Backend(backend),
                PrefixStore(name, store),
                group_name=GroupName(name),
                timeout=self._limit,
            )
            _world.pg_group_ranks[group] = {}  # `destroy_process_group` expects it
            self._group, self._name = group, name

        with _beside(join, self.abort):
            yield {**fields, "group_name": name, "backend": backend}

    def rank_of(self, server: int) -> int:
        """Return the rank of the first process of a server of the group, counted from 0."""
        return 1 + server * self._ranks_each

    def broadcast(self, flat: Tensor) -> None:
        """Send a tensor to all ranks of the group."""
        assert self._group is not None, "no group was formed"
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self._group.broadcast([flat], options).wait()
        if flat.is_cuda:
            torch.cuda.synchronize(flat.device)

    def abort(self) -> dist.ProcessGroup | None:
        """End the group, a server of which may be dead or have left a broadcast, and return it; another one may be formed.

        It is not destroyed: with gloo that would wait for a broadcast under way until its time limit.
        """
        group, self._group, self._store = self._group, None, None
        if group is not None and self._device.type == "cuda":
            group.abort()
        return group

    def buckets(self, weights: Tensors, most: int | None = None) -> Iterator[BroadcastBucket]:
        """Yield all tensors, each read once and in order, in buckets of at most `most` bytes (None: 512 MiB), or of one larger tensor."""
        named = lots(weights.specs, BUCKET_BYTES if most is None else most)
        for number, names in enumerate(named):
            specs = {
                name: weights.specs[name] for name in sorted(names, key=lambda n: -weights.specs[n].dtype.itemsize)
            }
            described = {
                "group_name": self._name,
                "names": [*specs],
                "dtypes": [str(spec.dtype).removeprefix("torch.") for spec in specs.values()],
                "shapes": [[*spec.shape] for spec in specs.values()],
            }
            sizes = [spec.bytes for spec in specs.values()]
            flat = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
            parts = dict(zip(specs, torch.split(flat, sizes), strict=True))
            for name in names:  # in order, one at a time
                parts[name].view(specs[name].dtype).view(specs[name].shape).copy_(weights.read(name).detach())
            yield BroadcastBucket(flat=flat, described=described, is_last=number == len(named) - 1, group=self)


@contextmanager
def _beside(work: Callable[[], None], abort: Callable[[], object]) -> Iterator[None]:
    """Run `work` in a thread while the block runs. Raises ServerAway if it fails: a server has left half of the new weights.

    After an error of the block `abort` ends the work. A broadcast of gloo lasts until its time limit, for which nothing waits.
    """
    failures: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the caller raises it
            failures.append(error)

    thread = threading.Thread(target=run, name="broadcast", daemon=True)
    thread.start()
    try:
        yield
        thread.join()
    except BaseException:
        abort()
        thread.join(SECONDS_TO_END)
        raise
    if failures:
        raise ServerAway(f"Weights could not be sent to all servers: {failures[0]}") from failures[0]
