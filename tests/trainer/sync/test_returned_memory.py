"""Two processes (gloo) return the memory that they no longer use before a server takes memory on their GPUs."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.trainer import runs
from tests.trainer.sync import cache_ranks
from tests.trainer.test_several_processes import SHAPE

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.models.fresh import make_fresh
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.distributed import World, process_group

FREED = ["rank 0 frees", "rank 1 frees"]
EVENTS = {
    "folder": [*FREED, "server takes weights", "server takes kv_cache"],
    "tensors": ["server takes weights", *FREED, "server takes kv_cache"],
}


@pytest.mark.parametrize("road", [*EVENTS])
def test_both_ranks_return_gathered_weights_before_a_server_takes_its_cache_back(road: str, tmp_path: Path) -> None:
    make_fresh(tmp_path / "source", SHAPE, torch.float32)
    convert(tmp_path / "source", tmp_path / "initial", Checkpoint.model_validate({"format": "dcp"}))
    runs.launch(2, cache_ranks.__file__, tmp_path / "initial", tmp_path, road)
    assert (tmp_path / "events").read_text().splitlines() == EVENTS[road]


def test_every_rank_returns_its_memory_before_a_server_comes_back(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    """A server gets weights at its opening and after the first of two steps."""
    runs.launch(2, __file__, *inputs, tmp_path)
    assert (tmp_path / "events").read_text().splitlines() == [*FREED, "server takes weights"] * 2


class Noted(runs.ScriptedEngine):
    """Notes when it gets weights."""

    out: Path

    def load(self, weights: Tensors, version: str) -> None:
        cache_ranks.note(self.out, "server takes weights")
        super().load(weights, version)


def _train(world: World, initial: Path, split: Path, out: Path) -> None:
    def return_late() -> None:
        time.sleep(0.3 * world.rank)  # a server that waits for nobody would be first
        cache_ranks.note(out, f"rank {world.rank} frees")

    Noted.out = out
    run = runs.training_run((initial, split), out / "state", out, steps=2)
    shared = run.runtime.model_dump() | {"engine": run.runtime.engine.model_dump() | {"release_memory": True}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "empty_cache", return_late)
        runs.execute(replace(run, runtime=Runtime.model_validate(shared)), Noted, world)


if __name__ == "__main__":
    with process_group() as joint:
        _train(joint, *map(Path, sys.argv[1:]))
