"""Two processes (gloo) whose servers leave their GPUs: each returns its unused memory before any server comes back."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.trainer import runs
from tests.trainer.sync.cache_ranks import note

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.distributed import World, process_group


def test_every_rank_returns_its_memory_before_a_server_comes_back(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    runs.launch(2, __file__, *inputs, tmp_path)
    events = (tmp_path / "events").read_text().splitlines()
    assert events == 2 * ["returned", "returned", "load"], "at the opening and after the first of two steps"


def _train(world: World, initial: Path, split: Path, out: Path) -> None:
    class Noted(runs.ScriptedEngine):
        def load(self, weights: Tensors, version: str) -> None:
            note(out, "load")
            super().load(weights, version)

    def return_late() -> None:
        time.sleep(0.3 * world.rank)  # a server that waits for nobody would be first
        note(out, "returned")

    run = runs.training_run((initial, split), out / "state", out, steps=2)
    shared = run.runtime.model_dump() | {"engine": run.runtime.engine.model_dump() | {"release_memory": True}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "empty_cache", return_late)
        runs.execute(replace(run, runtime=Runtime.model_validate(shared)), Noted, world)


if __name__ == "__main__":
    with process_group() as joint:
        _train(joint, *map(Path, sys.argv[1:]))
