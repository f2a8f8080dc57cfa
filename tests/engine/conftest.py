from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.engine.pools import pool_over
from tests.engine.scripted import Echo, Script, ScriptedServer
from tests.engine.serving import engine, living_in, one_thread, pool, server, tiny_model, wait_until

from dagrpo.engine.http import Endpoint
from dagrpo.engine.pool import ServerPool

__all__ = [
    "MakePool",
    "Serve",
    "engine",
    "living_in",
    "one_thread",
    "pool",
    "pool_of",
    "serve",
    "server",
    "tiny_model",
    "wait_until",
]
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
    for scripted in servers:
        scripted.stop()


@pytest.fixture
def pool_of(tmp_path: Path) -> Iterator[MakePool]:
    """Makes engines over scripted servers."""
    with ExitStack() as stack:
        (tmp_path / "like").mkdir()

        def make(*endpoints: Endpoint, timeout: float = 5, keeps_all: bool = False) -> ServerPool:
            opened = pool_over(endpoints, tmp_path / "like", tmp_path / "weights", timeout, keeps_all=keeps_all)
            return stack.enter_context(opened)

        yield make
