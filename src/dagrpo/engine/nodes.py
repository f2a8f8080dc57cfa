"""Servers of a training on separate nodes (runtime.engine.nodes).

The trainer describes its servers in a file of a folder that all nodes see, and only their user may enter; `serve`, in
`dagrpo.pipeline.launch` on each of these nodes, starts them, and answers with their addresses and keys in another. They run until the
folder is gone. If one dies, its node starts it again; it gets requests after the next weight sync. If a part of one that several nodes
share (nodes_per_server) dies, the stage is started again.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, Self

from dagrpo.core.errors import UserError
from dagrpo.engine import ENGINES
from dagrpo.engine.config import FOLDER, PATIENCE, EngineConfig
from dagrpo.engine.errors import ServerAway, ServerError
from dagrpo.engine.http import Endpoint
from dagrpo.engine.servers import Part, StartedServer, start_all
from dagrpo.utils.console import say
from dagrpo.utils.distributed import listening_store, own_software
from dagrpo.utils.failures import words_of
from dagrpo.utils.files import read_json, write_json

OF_NODES = Path(".state/weights")  # where weights go that other nodes read, without a weights_folder
DESCRIPTION = "servers.json"
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_SEE = 60.0  # until a folder that another node has made is here
MOST_RESTARTS = 3  # of each server


def is_served_by_nodes(config: EngineConfig) -> bool:
    """Return True in a training whose servers have separate nodes; other stages start them here."""
    return config.nodes > 0 and FOLDER in os.environ


class RestartableServer(StartedServer, Protocol):
    """Server on a separate node."""

    @property
    def endpoint(self) -> Endpoint:
        """Return its address and key, once started."""

    @property
    def answers_requests(self) -> bool:
        """Return False for a part of a server whose first machine answers."""

    def diagnose(self) -> str | None:
        """Return why it is dead; None if it is alive."""

    def begun_again(self) -> Self:
        """Begin a server in the place of this one, which is dead, with its address and key; return it.

        It lacks what it was sent since its start.
        """


def on_nodes(folder: Path, config: EngineConfig, log: Path, options: Mapping[str, Any]) -> list[Endpoint]:
    """Return the servers of all nodes, once they are ready. `options`: the arguments of the engine's `start`, as JSON takes them.

    Raises ServerError if a node cannot start its servers, and UserError if it does not come or has other software.
    """
    write_json(
        folder / DESCRIPTION, {"config": config.model_dump(), "log": str(log.absolute()), "options": dict(options)}
    )
    say(f"Waiting for the servers of {config.nodes} nodes.")
    patience = float(os.environ.get(PATIENCE, "inf")) + config.start_timeout
    deadline = time.monotonic() + patience
    found = [_answer_of(folder, number, deadline) for number in range(config.nodes)]
    return [
        Endpoint(address=each["address"], api_key=each["api_key"], comes_back=True)
        for servers in found
        for each in servers
    ]


def _answer_of(folder: Path, number: int, deadline: float) -> list[dict[str, str]]:
    while not (path := folder / f"{number}.json").is_file():
        if time.monotonic() > deadline:
            raise UserError(
                f"node {number} of those that serve (runtime.engine.nodes) has not started its servers in time (runtime.node_timeout and "
                "runtime.engine.start_timeout): start all nodes, and see what that one printed"
            )
        time.sleep(SECONDS_BETWEEN_LOOKS)
    answer = read_json(path)
    if isinstance(answer, str):
        raise ServerError(answer)
    if answer["software"] != (own := own_software()):
        raise UserError(
            f"node {number} of those that serve has {answer['software']}; the trainer has {own}: use the same environment on all nodes"
        )
    return list(answer["servers"])


def serve(folder: Path, number: int, address: str) -> None:
    """Start this node's servers as soon as they are described, at an address of this machine, and watch them while the folder is there.

    Raises what has ended them, after the trainer has got its text, and UserError if the folder is not here.
    """
    deadline = time.monotonic() + SECONDS_TO_SEE
    while not folder.is_dir():
        if time.monotonic() > deadline:
            raise UserError(
                f"{folder} is not on this node, or its training has ended: let all nodes see the folder of the project"
            )
        time.sleep(SECONDS_BETWEEN_LOOKS)
    while not (folder / DESCRIPTION).is_file():
        if not folder.is_dir():  # the training has ended
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)
    described = read_json(folder / DESCRIPTION)
    engine = ENGINES.get(described["config"]["name"])
    config, first = engine.config(**described["config"]), number * described["config"]["replicas"]
    assert engine.start is not None
    start, log, options = engine.start, Path(described["log"]), described["options"]

    def make(own_log: Path, gpus: str | None) -> RestartableServer:
        server: RestartableServer = start(config, own_log, gpus, address, **options)
        return server

    try:
        with _part_of(folder, config, number, address) as part, ExitStack() as stack:  # servers end before their store
            if part is not None:
                options["part"] = part
            servers = start_all(stack, config, log, make, first=first)
            answering = [each.endpoint for each in servers if each.answers_requests]
            ends = [{"address": each.address, "api_key": each.api_key} for each in answering]
            write_json(folder / f"{number}.json", {"software": own_software(), "servers": ends})
            _watch(servers, folder, starts_again=part is None)
    except Exception as error:  # of whatever kind: the trainer waits
        if folder.is_dir():
            write_json(folder / f"{number}.json", words_of(error))
        raise


@contextmanager
def _part_of(folder: Path, config: EngineConfig, number: int, address: str) -> Iterator[Part | None]:
    """Yield this node's part of a server that several share; None where each has its own. The first of them opens their store."""
    span, store = config.nodes_per_server, None
    if span == 1:
        yield None
        return
    note = folder / f"store_{number // span}.json"
    if number % span == 0:
        store, port = listening_store(address, 0, timedelta(seconds=config.start_timeout))
        write_json(note, f"{address}:{port}")
    while not note.is_file():
        if not folder.is_dir():
            raise ServerError("The training ended before this node's part of a server was started.")
        time.sleep(SECONDS_BETWEEN_LOOKS)
    yield Part(number=number % span, of=span, store=read_json(note))
    del store  # which ends when nothing refers to it


def _watch(servers: Sequence[RestartableServer], folder: Path, *, starts_again: bool) -> None:
    """Start dead servers again until the training has ended. Raises ServerAway where one is a part that cannot."""
    watched = [(server, MOST_RESTARTS) for server in servers]
    while folder.is_dir():
        for place, (server, left) in enumerate(watched):
            if left and (reason := server.diagnose()):
                if not starts_again:
                    raise ServerAway(reason)
                say(f"{reason}. It is started again.")
                watched[place] = (_begun_again(server), left - 1)
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _begun_again(server: RestartableServer) -> RestartableServer:
    """Return the server in the place of a dead one; the dead one if none can be started."""
    try:
        return server.begun_again()
    except ServerError as error:
        say(str(error))
        return server
