"""The processes that train one policy together, as torchrun starts them; or the one process that trains it alone.

What they tell each other is JSON and tensors, never a pickle.
"""

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# The others wait while the first one samples, which may take hours; when one dies, torchrun ends them all.
LONGEST_WAIT = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """This process among those that train together. All of them call the methods below, in the same order."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """The first one samples, grades, records and writes; the others only compute."""
        return self.rank == 0

    def share(self, value: Any = None) -> Any:
        """What the first process gives, in every process. Takes what JSON can say; the others' values are ignored."""
        if self.count == 1:
            return value
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor([content.numel()])
        dist.broadcast(length, src=0)
        if not self.is_first:
            content = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(content, src=0)
        return json.loads(content.numpy().tobytes())

    def wait(self) -> None:
        """Go on when the first process has come this far."""
        self.share(None)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, in every process; `values` is overwritten."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    @contextmanager
    def shared_folder(self, opened: AbstractContextManager[Path]) -> Iterator[Path]:
        """The folder that the first process opens, on a disk that all can write to; closed when all have filled it."""
        if not self.is_first:
            yield Path(self.share())
            self._meet()
            return
        with opened as folder:
            self.share(str(folder))
            yield folder
            self._meet()

    def _meet(self) -> None:
        self.sum(torch.zeros(1))


def alone() -> Processes:
    """The one process of a run that is not distributed."""
    return Processes(rank=0, count=1, device=_device())


@contextmanager
def joined() -> Iterator[Processes]:
    """This process among those that torchrun started with it. Each takes its share of the threads given to them all.

    ValueError: there are GPUs, but fewer than processes.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield alone()
        return
    device = _device()
    torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ["LOCAL_WORLD_SIZE"])))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=LONGEST_WAIT)
    yield Processes(rank=dist.get_rank(), count=count, device=device)
    dist.destroy_process_group()  # not after an error: the others may never come, and torchrun ends them


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    wanted, devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if wanted > devices:  # in every process, so that the first one says it
        raise ValueError(
            f"training.processes is {wanted}, but this machine has {devices} GPUs, one for each: set it to {devices}."
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device
