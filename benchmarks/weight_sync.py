"""Weight sync with one server: a folder, tensors in shared memory, a broadcast (runtime.engine.weight_sync).

    OMP_NUM_THREADS=1 python -m benchmarks.weight_sync MODEL [--dtype float32] [--rounds 5]

MODEL is a folder with a model of transformers. The ways take turns, with other weights each round; printed are the bytes of the weights,
HTTP requests, bytes that travel by HTTP, and the median seconds of each way with their ratio. The digests of all must agree.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.tensors import NAMED_DTYPES, CastTensors, StateTensors, total_bytes
from dagrpo.engine import sglang
from dagrpo.engine.background import BackgroundLoop
from dagrpo.engine.http import Endpoint
from dagrpo.engine.interface import new_version
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.broadcast import BroadcastGroup
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.engine.sglang.command import HOST
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.engine.sglang.tensor_sync import SharedMemory, buckets, obstacle_to_sharing, sync_device
from dagrpo.engine.weight_files import WeightsFolder
from dagrpo.utils.child_variables import interface_of, sockets_on


class CountingClient(ServerClient):
    """Counts what it sends."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        super().__init__(endpoint, timeout)
        self.requests, self.sent, self._uncounted = 0, 0, self._http.post
        self._http.post = self._counted  # type: ignore[method-assign]

    async def _counted(self, path: str, body: dict[str, Any]) -> bytes:
        self.requests += 1
        self.sent += len(json.dumps(body))
        return await self._uncounted(path, body)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", choices=NAMED_DTYPES, default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    os.environ |= sockets_on(interface_of(HOST))
    engine = sglang.Config(max_total_tokens=8192, max_running_requests=8, start_timeout=600)
    with tempfile.TemporaryDirectory() as logs:
        log = Path(logs) / "server.log"
        with SGLangServer(given.model, engine, log, dtype=given.dtype) as server:
            _measure(given, server)


def _measure(given: argparse.Namespace, server: SGLangServer) -> None:
    source = HuggingFaceTensors(given.model)
    device = sync_device(torch.cuda.is_available())
    assert (obstacle := obstacle_to_sharing(device)) is None, obstacle
    masters = {name: source.read(name).float().to(device) for name in source.specs}
    weights = CastTensors(StateTensors(masters), NAMED_DTYPES[given.dtype])
    with BackgroundLoop() as loop, WeightsFolder(given.model, None) as folder:
        client = CountingClient(server.endpoint, 600)
        version = new_version("first")
        group = BroadcastGroup(HOST, device, 600)
        ways = {
            "folder": ServerPool([client], loop, folder, version),
            "tensors": ServerPool(
                [client], loop, folder, version, buckets=partial(buckets, memory=SharedMemory(device))
            ),
            "distributed": ServerPool([client], loop, folder, version, buckets=group.buckets, group=group),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        counts: dict[str, tuple[int, int]] = {}
        for number in range(given.rounds + 1):  # the first warms up
            for tensor in masters.values():
                tensor.mul_(1.01)
            digests = []
            for way, pool in ways.items():
                client.requests = client.sent = 0
                began = time.perf_counter()
                pool.load(weights, f"step_{number}")
                seconds[way].append(time.perf_counter() - began)
                counts[way] = client.requests, client.sent
                digests.append(pool.digests())
            assert digests[0] == digests[1] == digests[2], "the ways give a server different weights"
        loop.run(client.close())
    medians = {way: statistics.median(each[1:]) for way, each in seconds.items()}
    print("| way | MB of weights | HTTP requests | bytes by HTTP | seconds | ratio |\n|---|---|---|---|---|---|")
    for way, (requests, sent) in counts.items():
        size, ratio = total_bytes(weights) / 1e6, medians[way] / medians["folder"]
        print(f"| {way} | {size:.1f} | {requests} | {sent:,} | {medians[way]:.3f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
