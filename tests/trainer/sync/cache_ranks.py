"""Processes that hand their weights to a scripted server on their GPUs; all write the order of events to OUT/events.

`python -m dagrpo.pipeline.launch N tests/trainer/sync/cache_ranks.py INITIAL OUT ROAD`, where ROAD is folder or tensors.
"""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.engine.pools import STARTED_WITH
from tests.engine.scripted import ScriptedServer

from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.engine.background import BackgroundLoop
from dagrpo.engine.http import Endpoint
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.engine.sglang.tensor_sync import SharedMemory, buckets
from dagrpo.engine.weight_files import WeightsFolder
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.utils.distributed import World, process_group


def note(out: Path, event: str) -> None:
    with (out / "events").open("a") as file:
        file.write(f"{event}\n")


def run(initial: Path, out: Path, road: str, world: World) -> None:
    memory = SharedMemory(torch.device("cpu"))
    weights = GatheredWeights(load_policy(initial, world).model, torch.float32, world, memory=memory)

    def free() -> None:
        time.sleep(0.3 * world.rank)  # a server that waits for nobody would be first
        note(out, f"rank {world.rank} frees")

    torch.cuda.empty_cache = free
    if not world.is_rank_zero:
        weights.give_parts()
        return

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/resume_memory_occupation":
            note(out, f"server takes {body['tags'][0]}")
        return 200, {"success": True}

    cut = partial(buckets, memory=memory) if road == "tensors" else None
    with BackgroundLoop() as loop, WeightsFolder(out, out / "weights") as folder:
        client = ServerClient(Endpoint(address=ScriptedServer(answer).address), 5)
        pool = ServerPool([client], loop, folder, STARTED_WITH, leaves=True, buckets=cut)
        pool.release_memory()
        with weights.reading() as tensors:
            pool.load(tensors, "step_1")
        loop.run(client.close())


if __name__ == "__main__":
    with process_group() as joint:
        run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], joint)
