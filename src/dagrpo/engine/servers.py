"""Servers of an engine, started here or shared elsewhere."""

import hashlib
import resource
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

from filelock import FileLock, Timeout

from dagrpo.core.errors import UserError
from dagrpo.engine.config import EngineConfig
from dagrpo.engine.weight_files import make_writable
from dagrpo.utils.console import say
from dagrpo.utils.devices import VISIBLE, visible_devices

SUFFIX = ".server.log"
MOST_OPEN_FILES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Part of a server that several machines share."""

    number: int  # of this machine, from 0; that one answers requests
    of: int  # machines
    store: str  # HOST:PORT of the store in which their processes find each other


class StartedServer(Protocol):
    """Server that a stage starts: ready inside the context, stopped after it."""

    def begin(self) -> None:
        """Start it without waiting until it is ready."""

    def stop(self) -> None:
        """Kill it. May be called again, and before the context is entered."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...


Server = TypeVar("Server", bound=StartedServer)


def start_all(
    stack: ExitStack,
    config: EngineConfig,
    log: Path,
    make: Callable[[Path, str | None], Server],
    *,
    first: int = 0,
    reserved: int = 0,
) -> list[Server]:
    """Return the servers, ready, until the stack is closed. Number 0 writes `log`, the others write files beside it.

    `make` returns a server with a log and the GPUs that it sees, as CUDA_VISIBLE_DEVICES names them (None: all that this process
    sees). reserved: as for `gpus_of`. All are started before the first wait: each takes a while. Raises what they raise, and UserError if
    there are too few GPUs.
    """
    numbered = enumerate(gpus_of(config, visible_devices(), reserved), start=first)
    servers = [make(log_of(log, number), gpus) for number, gpus in numbered]
    for server in servers:
        stack.callback(server.stop)
        server.begin()
    for server in servers:
        stack.enter_context(server)
    return servers


def log_of(log: Path, number: int) -> Path:
    """Return the log file of a server, numbered from 0."""
    if number == 0:
        return log
    stem = log.name.removesuffix(SUFFIX)
    return log.with_name(f"{stem}.{number + 1}{log.name.removeprefix(stem)}")


def gpus_of(config: EngineConfig, visible: Sequence[str], reserved: int = 0) -> list[str | None]:
    """Return the GPUs of each server, with commas, among those that this process sees; None: it sees what this process sees.

    Processes that train have the first ones (distributed.py), so that servers with separate GPUs have the last, before `reserved` ones of
    other servers. Raises UserError if there are too few.
    """
    each, count = config.tensor_parallel, config.gpus
    if not visible or (count == 1 and not config.own_gpus):
        return [None] * config.replicas
    free = visible[: max(0, len(visible) - reserved)]
    if len(free) < count:
        raise UserError(
            f"replicas is {config.replicas} and tensor_parallel {each}, which takes {count} GPUs, but {len(visible)} are visible here "
            f"({VISIBLE}), of which other servers have {reserved} to themselves: lower one of the two."
        )
    own = free[-count:] if config.own_gpus else free[:count]
    return [",".join(own[first : first + each]) for first in range(0, count, each)]


def raise_open_files() -> int:
    """Raise the limit of open files of this process and its servers to the user's, up to MOST_OPEN_FILES; return it.

    Each running request is a connection at both ends, and systems begin with 1,024 files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_OPEN_FILES
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def most_connections(open_files: int, servers: int) -> int:
    """Return how many connections this process may have to each server: half of its open files, divided by their number."""
    return max(1, open_files // 2 // servers)


def lock_elsewhere(stack: ExitStack, folder: Path, servers: Sequence[str]) -> None:
    """Wait until no other stage uses one of these servers: they hold the weights of one stage at a time."""
    make_writable(folder)
    # One order in every process, so that no two wait for each other.
    for address in sorted({address.rstrip("/") for address in servers}):
        name = hashlib.sha256(address.encode()).hexdigest()[:16]
        lock = FileLock(folder / f"dagrpo-server-{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"{address} is used by another stage: waiting for it.")
            lock.acquire()
        stack.callback(lock.release)
