"""Ray over several nodes: a head, and those that join it."""

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from dagrpo.core.errors import TransientError, UserError
from dagrpo.trainer.backend_files import SECONDS_BETWEEN_LOOKS, ended
from dagrpo.trainer.foreign.files import reply_of
from dagrpo.trainer.foreign.nodes import SCRATCH, Nodes, Start, started
from dagrpo.trainer.verl import cluster_check
from dagrpo.utils.addresses import free_port
from dagrpo.utils.child_variables import alone
from dagrpo.utils.watched_process import WatchedProcess

SECONDS_TO_CONNECT = 120.0
TOKEN = "ray_token"  # file in the run's state


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Settings with which Ray is started on each node."""

    python: str
    gpus: int
    cores: int | None  # None: all that Ray finds
    patience: float  # longest seconds until all nodes are there
    environment: Mapping[str, str]  # of every process of Ray, and so of verl; with `access`
    logs: tuple[str, ...]
    folder: Path  # on the file system of all nodes


@contextmanager
def ray_over(nodes: Nodes, cluster: Cluster) -> Iterator[str]:
    """Yield the address of a Ray of all nodes, which ends with this.

    Raises UserError if a node has not joined it in time, TransientError if Ray ends.
    """
    first = nodes.addresses[0]
    place = f"{first}:{free_port(first)}"
    head, *others = starts(nodes.addresses, cluster, place)
    with started(head) as process:
        _wait_for_head(process, head, place, cluster.patience)
        with nodes.beside(others):
            _require_all(nodes, cluster, place)
            yield place


def access(folder: Path) -> dict[str, str]:
    """Write a new token, and return the variables by which Ray asks for it."""
    path = (folder / TOKEN).resolve()
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path), "RAY_AUTH_TOKEN": ""}


def starts(addresses: Sequence[str], cluster: Cluster, place: str) -> list[Start]:
    """Return what starts Ray on each node: the head at `place`, an address and a port, and nodes that join it."""
    port = f"--port={place.rpartition(':')[2]}"
    head = ["--head", port, "--include-dashboard=false", "--disable-usage-stats"]
    cores = [] if cluster.cores is None else [f"--num-cpus={cluster.cores}"]
    each = ["--block", f"--temp-dir={SCRATCH}", f"--num-gpus={cluster.gpus}", *cores]
    return [
        Start(
            command=[
                *(cluster.python, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={address}"),
                *(head if node == 0 else [f"--address={place}"]),
                *each,
            ],
            log=cluster.logs[node],
            environment=cluster.environment,
        )
        for node, address in enumerate(addresses)
    ]


def _wait_for_head(process: WatchedProcess, head: Start, place: str, patience: float) -> None:
    address, _, port = place.rpartition(":")
    deadline = time.monotonic() + patience
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((address, int(port))) == 0:
                return
        if (code := process.exit_code()) is not None:
            raise TransientError(ended(head.command, code, head.log))
        if time.monotonic() > deadline:
            raise TransientError(
                f"Ray's head does not answer at {place} after {patience:g} seconds (runtime.node_timeout): see {head.log}."
            )
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _require_all(nodes: Nodes, cluster: Cluster, place: str) -> None:
    """Raise UserError if Ray does not have all nodes in time."""
    job = {"address": place, "nodes": nodes.addresses, "seconds": cluster.patience}
    environment = {**alone(), **cluster.environment}
    seconds = cluster.patience + SECONDS_TO_CONNECT
    found = reply_of(
        *(cluster.python, cluster_check.__file__, job, cluster.folder, "verl"),
        name="ray",
        seconds=seconds,
        environment=environment,
    )
    missing = [f"{node} ({nodes.addresses[node]})" for node in found.get("missing", ())]
    if missing:
        raise UserError(
            f"Ray has {len(nodes.addresses) - len(missing)} of {len(nodes.addresses)} nodes after {cluster.patience:g} seconds "
            f"(runtime.node_timeout): node {', '.join(missing)} has not joined it. See {cluster.logs[found['missing'][0]]}, and let "
            f"all ports of these addresses through."
        )
    if "error" in found:
        raise TransientError(f"Ray at {place} does not tell its nodes: {found['error']}.")
