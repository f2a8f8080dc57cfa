from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.rollout.engine.pools import pool_over
from tests.rollout.engine.scripted import Echo, Script, ScriptedServer

from dagrpo.rollout.engine.client import Endpoint
from dagrpo.rollout.engine.pool import ServerPool

Serve = Callable[..., ScriptedServer]
MakePool = Callable[..., ServerPool]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts scripted servers."""
    servers: list[ScriptedServer] = []

    def start(script: Script | None = None) -> ScriptedServer:
        servers.append(ScriptedServer(script or Echo()))
        return servers[-1]

    yield start
    for server in servers:
        server.http.shutdown()
        server.http.server_close()


@pytest.fixture
def pool_of(tmp_path: Path) -> Iterator[MakePool]:
    """Makes engines over scripted servers."""
    with ExitStack() as stack:
        (tmp_path / "like").mkdir()

        def make(*endpoints: Endpoint, timeout: float = 5, keeps_all: bool = False) -> ServerPool:
            opened = pool_over(endpoints, tmp_path / "like", tmp_path / "weights", timeout, keeps_all=keeps_all)
            return stack.enter_context(opened)

        yield make
