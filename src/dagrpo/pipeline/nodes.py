"""Connections between the nodes of one training.

The first node opens torch's key-value store on the address that was asked for, and describes the launch in a file: every node needs
the project's folder on one file system. The store has no key: who can reach it can disturb a training, but runs no code. Each node
gives a sign of life every second.
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from torch._C._distributed_c10d import Store, TCPStore  # torch.distributed, for which no types are declared

from dagrpo.core.errors import UserError
from dagrpo.pipeline.record import STATES
from dagrpo.utils import slurm
from dagrpo.utils.addresses import no_address, own_address
from dagrpo.utils.distributed import listening_store
from dagrpo.utils.environment import environment
from dagrpo.utils.failures import MISTAKE
from dagrpo.utils.files import digest_of, remove, sha256_of, write_json
from dagrpo.utils.locks import signs_of_life

LAUNCHES = STATES / "launches"  # a file for each training on several nodes that is under way, the oldest first by name
SECONDS_BETWEEN_SIGNS = 1.0
SECONDS_OF_SILENCE = 30.0  # after which a node counts as gone
SECONDS_TO_CONNECT = 30.0
SECONDS_TO_SEE_A_FILE = 60.0  # NFS may show a new one late
_END, _STOP = "end", "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The processes of one training, as the first node describes them to the others."""

    script: str
    arguments: tuple[str, ...]
    processes: int  # of each node
    nodes: int
    engines: int  # the last ones of these, which run servers alone
    address: str  # of the first node
    port: int
    patience: float  # longest seconds until all nodes are there
    grace: str  # DAGRPO_GRACE_SECONDS
    software: str  # `own_software` of the first node

    @property
    def trainers(self) -> int:
        """Return the number of nodes that train, the first ones."""
        return self.nodes - self.engines


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The word with which one node ends all."""

    code: Annotated[int, Field(ge=1, le=255)]  # exit code: an end well is no word, and no stranger's
    sentence: str = ""  # why, where rank 0 has not said it
    is_of_servers: bool = False  # which end by themselves; ranks also because another one has


UNSEEN = Launch(
    script="", arguments=(), processes=0, nodes=1, engines=0, address="", port=0, patience=0.0, grace="", software=""
)  # of a node that cannot read it
_LAUNCH, _WORD = TypeAdapter(Launch), TypeAdapter(End)


def own_software() -> str:
    """Return the digest of this machine's dagrpo, and the versions that its part of a training follows from."""
    package = Path(__file__).parents[1]
    digest = digest_of({str(file.relative_to(package)): sha256_of(file) for file in sorted(package.rglob("*.py"))})
    versions = {name: version for name, version in environment(on_gpu=False).items() if name != "device"}
    return ", ".join(f"{name} {version}" for name, version in {"dagrpo": digest[:16], **versions}.items())


def servers_of(note: Path) -> Path:
    """Return the folder in which a launch describes servers to its nodes."""
    return note.with_suffix("")


def read_launch(note: Path) -> Launch | None:
    """Return a described launch; None if the file is not there, or not whole."""
    try:
        return _LAUNCH.validate_json(note.read_bytes())
    except (OSError, ValidationError):
        return None


class Link:
    """A node's connection to the others."""

    def __init__(self, store: Store, launch: Launch, node: int) -> None:
        """Give signs of life through the store from now on. `node`: its number, 0 for the first."""
        self.launch, self.node = launch, node
        self._word: End | None = None
        self._is_well = False
        self._heard = dict.fromkeys(range(launch.nodes), time.monotonic())
        self._names = dict.fromkeys(range(launch.nodes), "")
        self._well: set[int] = set()
        self._left: set[int] = set()
        self.end: End | None = None  # a word of any node
        self._asks = False
        self.is_asked_to_stop = False  # by a node that a signal has reached
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._talk, args=(store,), daemon=True, name="nodes")
        self._thread.start()

    @property
    def rendezvous(self) -> str:
        """Return the address at which ranks find each other, as `utils.distributed` takes it."""
        return f"tcp://{self.launch.address}:{self.launch.port}"

    @property
    def are_all_there(self) -> bool:
        """Return True once every node has given a sign."""
        return all(self._names.values())

    @property
    def are_all_well(self) -> bool:
        """Return True once the ranks of every node have ended well."""
        return len(self._well) == self.launch.nodes

    @property
    def are_trainers_well(self) -> bool:
        """Return True once the ranks of every node that trains have ended well."""
        return {*range(self.launch.trainers)} <= self._well

    @property
    def missing(self) -> list[int]:
        """List the nodes that have given no sign yet."""
        return [node for node, name in self._names.items() if not name]

    def silent(self) -> str | None:
        """Name a node that has given signs, and none for too long; the first one is the only one that the others hear.

        Nodes that have left after the common end are left out.
        """
        late = time.monotonic() - SECONDS_OF_SILENCE
        gone = self._well | (self._left if self.end else set())
        for node in range(1, self.launch.nodes) if self.node == 0 else (0,):
            if self._names[node] and self._heard[node] < late and (node == 0 or node not in gone):
                return f"node {node} ({self._names[node] or self.launch.address})"
        return None

    def say_well(self) -> None:
        """Tell the others that this node's ranks have ended well; return when it has been sent."""
        self._is_well = True
        while self.node not in self._well and self.end is None and self.silent() is None:
            time.sleep(SECONDS_BETWEEN_SIGNS / 10)

    def close(self) -> None:
        """Give no more signs, and leave the store."""
        self._is_closed.set()
        self._thread.join(SECONDS_BETWEEN_SIGNS * 3)

    def ask_to_stop(self) -> None:
        """Ask the first node to end the training as after a signal. May be called again."""
        self._asks = True

    def say_end(self, end: End) -> End:
        """End all nodes, unless another one has done so before; return the word that counts, after it has been sent."""
        self._word = end
        deadline = time.monotonic() + 3 * SECONDS_BETWEEN_SIGNS
        while self.end is None and time.monotonic() < deadline:
            time.sleep(SECONDS_BETWEEN_SIGNS / 10)
        return self.end or end

    def _talk(self, store: Store) -> None:
        """Exchange signs until the store breaks: what the others have not heard by then is silence."""
        own = self.node
        if store.add(f"taken/{own}", 1) > 1:
            twice = End(
                code=MISTAKE, sentence=f"Two machines have joined as node {own}: give each a number of its own."
            )
            store.compare_set(_END, "", json.dumps(asdict(twice)))
        store.set(f"name/{own}", socket.gethostname())
        signs: dict[int, int] = {}
        try:
            while True:
                if self._word is not None:
                    store.compare_set(_END, "", json.dumps(asdict(self._word)))
                if self._is_well:
                    store.set(f"well/{own}", "")
                if self._asks:
                    store.set(_STOP, "")
                self.is_asked_to_stop = store.check([_STOP])
                for node in self._heard:
                    sign = store.add(f"sign/{node}", 1 if node == own else 0)
                    if signs.get(node) != sign or node == own:
                        signs[node], self._heard[node] = sign, time.monotonic()
                    if sign and not self._names[node] and store.check([f"name/{node}"]):
                        self._names[node] = store.get(f"name/{node}").decode(errors="replace")
                    for nodes, fate in ((self._well, "well"), (self._left, "left")):
                        if store.check([f"{fate}/{node}"]):
                            nodes.add(node)
                if own:
                    self._heard[0] = time.monotonic()  # its store answers
                if self.end is None and store.check([_END]):
                    self.end = _understood(store.get(_END))
                if self._is_closed.wait(SECONDS_BETWEEN_SIGNS):
                    store.set(f"left/{own}", "")
                    return
        except RuntimeError:
            if own:
                self._heard[0] = float("-inf")


def _understood(word: bytes) -> End:
    try:
        return _WORD.validate_json(word)
    except ValidationError:
        return End(code=1, sentence="a word that no node says has come from the network: use one of your own.")


@contextmanager
def first_node(launch: Launch) -> Iterator[tuple[Link, Path]]:
    """Open the store, describe the launch in a file, and yield both. `launch.port` 0: a free one.

    Raises UserError if the address is not this machine's.
    """
    try:
        store, port = listening_store(launch.address, launch.port, timedelta(seconds=SECONDS_TO_CONNECT))
    except OSError as error:
        raise UserError(
            f"{launch.address}:{launch.port} cannot be opened ({error.strerror}): set runtime.address to an address of the first node "
            "that the other nodes reach, with a free port if it names one."
        ) from error
    described = _LAUNCH.validate_python({**asdict(launch), "port": port})
    LAUNCHES.mkdir(parents=True, exist_ok=True)
    note = LAUNCHES / f"{time.time_ns()}-{token_hex(4)}.json"
    servers_of(note).mkdir(mode=0o700)
    write_json(note, asdict(described))
    link = Link(store, described, 0)
    del store  # which ends when the link does
    try:
        with signs_of_life(note):
            yield link, note
    finally:
        note.unlink(missing_ok=True)
        remove(servers_of(note))
        link.close()


def joined(address: str, port: int) -> Store:
    """Return the store of the first node. Raises UserError if it does not answer."""
    try:
        return TCPStore(
            address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=SECONDS_TO_CONNECT)
        )
    except RuntimeError as error:
        raise UserError(
            f"the first node does not answer at {address}:{port}: start its training, and let this machine reach that address."
        ) from error


def wait_for_note(note: Path) -> Launch | None:
    """Return the launch that the first node has described; None if the file does not appear here: another file system."""
    deadline = time.monotonic() + SECONDS_TO_SEE_A_FILE
    while (launch := read_launch(note)) is None and time.monotonic() < deadline:
        time.sleep(SECONDS_BETWEEN_SIGNS)
    return launch


def place_of_the_first(address: str | None, nodes: int) -> tuple[str, int, list[str]]:
    """Return address and port of this, the first node, and the names of the others in its SLURM job, [] outside one.

    Raises UserError if no address is named outside SLURM, or the job has too few nodes.
    """
    others = _others_in_slurm(nodes)
    if address is not None:
        host, _, port = address.partition(":")
        return _resolved(host), int(port or 0), others
    if not others:
        raise no_address(nodes)
    return own_address(slurm.address_of(others[0])), 0, others


def _others_in_slurm(nodes: int) -> list[str]:
    job = slurm.own_job()
    if not job:
        return []
    names = slurm.nodes_of(job)
    if len(names) < nodes:
        raise UserError(
            f"training takes {nodes} machines (runtime.nodes, runtime.engine.nodes), and SLURM "
            f"job {job} has {len(names)}: submit it through profiles/slurm, or ask for {nodes} nodes."
        )
    own = slurm.own_node()
    return [name for name in names if name != own][: nodes - 1]


def _resolved(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise UserError(
            f"runtime.address names {host}, which is not known here ({error.strerror}): name an IPv4 address."
        ) from error


def command_for_others(others: list[str], note: Path, link: Link, cores: int) -> list[str]:
    """Return the command with which SLURM starts the launcher on each of the other nodes."""
    number = str(len(others))
    return [
        *("srun", "--overlap", f"--nodes={number}", f"--ntasks={number}", "--ntasks-per-node=1", "--input=none"),
        *(f"--nodelist={','.join(others)}", f"--cpus-per-task={cores}", "--cpu-bind=none", "--mem=0"),
        *(
            sys.executable,
            "-m",
            "dagrpo.pipeline.launch",
            "--join",
            str(note),
            f"{link.launch.address}:{link.launch.port}",
        ),
    ]
