"""Ray over several nodes: a head, and those that join it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from dagrpo.core.errors import TransientError, UserError
from dagrpo.trainer.backend_files import SECONDS_BETWEEN_LOOKS, ended
from dagrpo.utils.addresses import free_port
from dagrpo.utils.child_variables import alone
from dagrpo.utils.files import write_private
from dagrpo.utils.watched_process import WatchedProcess
from dagrpo_foreign.files import reply_of
from dagrpo_foreign.nodes import SCRATCH, Nodes, Start, started
from dagrpo_verl import cluster_check

SECONDS_TO_CONNECT = 120.0
TOKEN = "ray_token"  # file in the run's state
FOLDER = "ray"  # in a scratch folder, which is private: Ray lets everyone write to its own
PLACE = "ray_current_cluster"  # file in it with the head's address and port


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
    head = head_of(nodes.addresses[0], cluster)
    with started(head) as process:
        place = f"{nodes.addresses[0]}:{_port_of(process, head, cluster.patience)}"
        join = [f"--address={place}"]
        with nodes.beside([start_of(node, nodes.addresses[node], cluster, join) for node in nodes.others]):
            _require_all(nodes, cluster, place)
            yield place


def access(folder: Path) -> dict[str, str]:
    """Write a new token, and return the variables by which Ray asks for it."""
    path = (folder / TOKEN).resolve()
    write_private(path, token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path), "RAY_AUTH_TOKEN": ""}


def head_of(address: str, cluster: Cluster) -> Start:
    """Return what starts Ray's head. It takes a port and writes it into its folder: one that others know before could be theirs."""
    # The client's port is not used, but two heads of one machine cannot have the usual one.
    client = f"--ray-client-server-port={free_port(address)}"
    words = ("--head", "--port=0", client, "--include-dashboard=false", "--disable-usage-stats")
    return start_of(0, address, cluster, words)


def start_of(node: int, address: str, cluster: Cluster, words: Sequence[str]) -> Start:
    """Return what starts Ray on a node. `words`: those that make it the head, or join it to one."""
    ray = [cluster.python, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={address}"]
    cores = [] if cluster.cores is None else [f"--num-cpus={cluster.cores}"]
    return Start(
        what=f"Ray of node {node} ({address})",
        command=[*ray, *words, "--block", f"--temp-dir={SCRATCH}/{FOLDER}", f"--num-gpus={cluster.gpus}", *cores],
        log=cluster.logs[node],
        environment=cluster.environment,
        lasts=True,
    )


def _port_of(process: WatchedProcess, head: Start, patience: float) -> str:
    """Return the port that a head has taken. Raises TransientError if it ends, or has none in time."""
    written, deadline = process.scratch / FOLDER / PLACE, time.monotonic() + patience
    while not (place := written.read_text() if written.is_file() else ""):
        if (code := process.exit_code()) is not None:
            raise TransientError(ended(head.what, code, head.log))
        if time.monotonic() > deadline:
            raise TransientError(
                f"{head.what} has not started within {patience:g} seconds (runtime.node_timeout): see {head.log}."
            )
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return place.rpartition(":")[2]


def _require_all(nodes: Nodes, cluster: Cluster, place: str) -> None:
    job = {"address": place, "nodes": nodes.addresses, "seconds": cluster.patience}
    environment = {**alone(), **cluster.environment}
    seconds = cluster.patience + SECONDS_TO_CONNECT
    program = (cluster.python, cluster_check.__file__, job, cluster.folder)
    try:
        found = reply_of(*program, name="ray", seconds=seconds, environment=environment)
    except TimeoutError as error:
        raise TransientError(f"Ray at {place} does not tell its nodes: what asks it {error}.") from None
    missing = [f"{node} ({nodes.addresses[node]})" for node in found.get("missing", ())]
    if missing:
        raise UserError(
            f"Ray has {len(nodes.addresses) - len(missing)} of {len(nodes.addresses)} nodes after {cluster.patience:g} seconds "
            f"(runtime.node_timeout): node {', '.join(missing)} has not joined it. See {cluster.logs[found['missing'][0]]}, and let "
            f"all ports of these addresses through."
        )
    if "error" in found:
        raise TransientError(f"Ray at {place} does not tell its nodes: {found['error']}.")
