"""Nodes of a run by another project's trainer.

A process of ours is on each. That of the first node does the stage's work, and writes what the others are to run beside it: to a file
of the run, for the network between them has no key.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch
import torch.distributed as dist

from dagrpo.core.errors import TransientError
from dagrpo.trainer.backend_files import SECONDS_BETWEEN_LOOKS, SECONDS_TO_END, ended
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.addresses import own_address
from dagrpo.utils.child_variables import alone
from dagrpo.utils.distributed import World, first_address, node_group
from dagrpo.utils.files import write_private
from dagrpo.utils.watched_process import WatchedProcess

SECONDS_TO_HEAR_WHY = 60.0
SECONDS_TO_SEE_A_FILE = 60.0  # of another node: NFS may show it late
STARTS = "starts.json"  # file in the run's state
SHORT = "/tmp"  # TMPDIR may be too long for the paths of sockets, which have 107 bytes at most
SCRATCH = "{scratch}"  # in a command: a folder of the node's, which is removed when the program has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Program that a node runs."""

    what: str  # in messages
    command: Sequence[str]
    log: str
    environment: Mapping[str, str] = field(default_factory=dict)  # beside that of the node
    lasts: bool = False  # until it is ended: an end before, with whatever exit code, is a fault


@contextmanager
def started(start: Start) -> Iterator[WatchedProcess]:
    """Start a program here, and end it with all that it has started."""
    with tempfile.TemporaryDirectory(dir=SHORT) as scratch:
        command = [word.replace(SCRATCH, scratch) for word in start.command]
        environment = {**alone(), **start.environment}
        process = WatchedProcess(command, environment=environment, log=Path(start.log), scratch=Path(scratch))
        try:
            yield process
        finally:
            process.end(SECONDS_TO_END)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Nodes of a run, as seen from one of them."""

    world: World
    addresses: tuple[str, ...]  # of each node, in the network of runtime.address; "" of one that is alone
    state: Path  # folder of the run, on the file system of all nodes

    @property
    def others(self) -> range:
        """Return the numbers of the nodes beside the first."""
        return range(1, len(self.addresses))

    @contextmanager
    def beside(self, starts: Sequence[Start]) -> Iterator[None]:
        """Run a program on each of the others while this is open. The first node calls this, or `dismiss`; after an error the launcher
        ends the others.
        """
        name = token_hex(16)
        write_private(self.state / STARTS, json.dumps({"name": name, "starts": [asdict(each) for each in starts]}))
        self.world.broadcast(name)
        yield
        self.world.barrier()

    def dismiss(self) -> None:
        """Tell the others that there is nothing to run."""
        self.world.broadcast("")

    def follow(self) -> None:
        """Run what the first node says, if anything, until it has done its part. Raises TransientError if the program dies before."""
        name = self.world.broadcast()
        if not name:
            return
        start = self._written(name)
        done = dist.all_reduce(torch.zeros(1), group=self.world.patient, async_op=True)
        assert done is not None
        with started(start) as process:
            while not done.is_completed():
                code = process.exit_code()
                if code or (code == 0 and start.lasts):
                    raise TransientError(ended(start.what, code, start.log))
                time.sleep(SECONDS_BETWEEN_LOOKS)
        try:
            done.wait()
        except RuntimeError:
            time.sleep(SECONDS_TO_HEAR_WHY)  # the first node has failed: its launcher says so, and ends this process
            raise

    def _written(self, name: str) -> Start:
        """Return what the first node has written for this one, under the name of its last word."""
        path, deadline, found = self.state / STARTS, time.monotonic() + SECONDS_TO_SEE_A_FILE, dict[str, Any]()
        while found.get("name") != name:
            if time.monotonic() > deadline:
                raise TransientError(
                    f"node {self.world.rank} does not see {path} as the first node has written it, after {SECONDS_TO_SEE_A_FILE:g} "
                    "seconds: runtime.nodes needs the project's folder on one file system."
                )
            time.sleep(SECONDS_BETWEEN_LOOKS)
            found = json.loads(path.read_text()) if path.is_file() else {}
        return Start(**found["starts"][self.world.rank - 1])


@contextmanager
def nodes_of(count: int, state: Path) -> Iterator[Nodes]:
    """Yield the nodes of a run, as many as its runtime.nodes says. `state`: its folder."""
    if count == 1:
        yield Nodes(world=World(rank=0, size=1, device=torch.device("cpu")), addresses=("",), state=state)
        return
    first = first_address()
    with node_group() as world:
        own = first if world.is_rank_zero else own_address(first)
        yield Nodes(world=world, addresses=tuple(world.gather(own)), state=state)


def log_of(run: TrainingRun, node: int) -> str:
    """Return the log of what a node runs beside the first one's program."""
    return str(run.server_log.with_suffix(f".node_{node}.log").resolve())
