"""Two processes (gloo) return the memory that they no longer use before a server takes memory on their GPUs.

All write the order of events to OUT/events.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.pools import STARTED_WITH
from tests.engine.scripted import ScriptedServer
from tests.everyday import everyday
from tests.trainer import runs

from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.engine.background import BackgroundLoop
from dagrpo.engine.http import Endpoint
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.engine.sglang.tensor_sync import SharedMemory, buckets
from dagrpo.engine.weight_files import WeightsFolder
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.utils.distributed import World

FREED = ["rank 0 frees", "rank 1 frees"]
EVENTS = {
    "folder": [*FREED, "server takes weights", "server takes kv_cache"],
    "tensors": ["server takes weights", *FREED, "server takes kv_cache"],
}


def _note(out: Path, event: str) -> None:
    with (out / "events").open("a") as file:
        file.write(f"{event}\n")


def _return_late(out: Path, rank: int) -> None:
    time.sleep(0.3 * rank)  # a server that waits for nobody would be first
    _note(out, f"rank {rank} frees")


def _hand_over(world: World, initial: Path, out: Path, road: str) -> None:
    memory = SharedMemory(torch.device("cpu"))
    weights = GatheredWeights(load_policy(initial, world).model, torch.float32, world, memory=memory)
    torch.cuda.empty_cache = partial(_return_late, out, world.rank)
    if not world.is_rank_zero:
        weights.give_parts()
        return

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/resume_memory_occupation":
            _note(out, f"server takes {body['tags'][0]}")
        return 200, {"success": True}

    cut = partial(buckets, memory=memory) if road == "tensors" else None
    with BackgroundLoop() as loop, WeightsFolder(out, out / "weights") as folder:
        client = ServerClient(Endpoint(address=ScriptedServer(answer).address), 5)
        pool = ServerPool([client], loop, folder, STARTED_WITH, leaves=True, buckets=cut)
        pool.release_memory()
        with weights.reading() as tensors:
            pool.load(tensors, "step_1")
        loop.run(client.close())


@pytest.mark.parametrize("road", everyday(["tensors"], EVENTS))
def test_both_ranks_return_gathered_weights_before_a_server_takes_its_cache_back(
    road: str, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    runs.launch(2, _hand_over, inputs[0], tmp_path, road)
    assert (tmp_path / "events").read_text().splitlines() == EVENTS[road]


class Noted(runs.ScriptedEngine):
    """Notes when it gets weights."""

    out: Path

    def load(self, weights: Tensors, version: str) -> None:
        _note(self.out, "server takes weights")
        super().load(weights, version)


def _train(world: World, inputs: tuple[Path, Path], out: Path) -> None:
    Noted.out = out
    run = runs.training_run(inputs, out / "state", out, steps=2)
    torch.cuda.empty_cache = partial(_return_late, out, world.rank)
    runs.execute(runs.changed(run, runtime={"engine": {"release_memory": True}}), Noted, world)


def test_every_rank_returns_its_memory_before_a_server_comes_back(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    """A server gets weights at its opening and after the first of two steps."""
    runs.launch(2, _train, inputs, tmp_path)
    assert (tmp_path / "events").read_text().splitlines() == [*FREED, "server takes weights"] * 2
