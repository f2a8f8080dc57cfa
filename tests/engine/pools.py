"""Engines over servers that are there already, whoever started them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagrpo.engine.background import BackgroundLoop
from dagrpo.engine.http import Endpoint
from dagrpo.engine.interface import WeightVersion
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.engine.weight_files import AdapterFolders, WeightsFolder

STARTED_WITH = WeightVersion(name="default", sent="default")  # what a server calls weights that nobody named


@contextmanager
def pool_over(
    endpoints: Sequence[Endpoint], like: Path, weights: Path | None = None, timeout: float = 120, **options: Any
) -> Iterator[ServerPool]:
    """`weights`: the folder in which weights travel; None: memory. `options`: those of ServerPool, with the form of `adapters`."""
    with BackgroundLoop() as loop, WeightsFolder(like, weights) as folder:
        if "adapters" in options:
            options["adapters"] = AdapterFolders(options["adapters"], folder)
        clients = [ServerClient(endpoint, timeout) for endpoint in endpoints]
        try:
            yield ServerPool(clients, loop, folder, STARTED_WITH, **options)
        finally:
            for client in clients:
                loop.run(client.close())
