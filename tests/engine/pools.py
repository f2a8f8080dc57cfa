"""Engines over servers that are there already, whoever started them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dagrpo.engine.background import BackgroundLoop
from dagrpo.engine.http import Endpoint
from dagrpo.engine.interface import WeightVersion
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.engine.weight_files import WeightsFolder

STARTED_WITH = WeightVersion(name="default", sent="default")  # what a server calls weights that nobody named


@contextmanager
def pool_over(
    endpoints: Sequence[Endpoint],
    like: Path,
    weights: Path | None = None,
    timeout: float = 120,
    *,
    keeps_all: bool = False,
) -> Iterator[ServerPool]:
    """`weights`: the folder in which weights travel; None: memory."""
    with BackgroundLoop() as loop, WeightsFolder(like, weights) as folder:
        clients = [ServerClient(endpoint, timeout) for endpoint in endpoints]
        try:
            yield ServerPool(clients, loop, folder, STARTED_WITH, keeps_all=keeps_all)
        finally:
            for client in clients:
                loop.run(client.close())
