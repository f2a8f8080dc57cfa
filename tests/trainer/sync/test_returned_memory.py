"""Two processes (gloo) whose servers leave their GPUs: each returns its unused memory before any server comes back."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tests.trainer import runs

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.distributed import World, process_group


def test_every_rank_returns_its_memory_before_a_server_comes_back(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    runs.launch(2, __file__, *inputs, tmp_path)
    loads = json.loads((tmp_path / "loads.json").read_text())
    assert len(loads) == 2, "at the opening and after the first of two steps"
    for rank in range(2):
        returned = json.loads((tmp_path / f"returned_{rank}.json").read_text())
        assert [sum(each < load for each in returned) for load in loads] == [1, 2]


class Timed(runs.ScriptedEngine):
    """Notes when it gets weights."""

    loads: ClassVar[list[float]] = []

    def load(self, weights: Tensors, version: str) -> None:
        self.loads.append(time.monotonic())  # one clock for all processes
        super().load(weights, version)


def _train(world: World, initial: Path, split: Path, out: Path) -> None:
    returned: list[float] = []

    def return_late() -> None:
        time.sleep(0.3 * world.rank)
        returned.append(time.monotonic())

    run = runs.training_run((initial, split), out / "state", out, steps=2)
    shared = run.runtime.model_dump() | {"engine": run.runtime.engine.model_dump() | {"release_memory": True}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "empty_cache", return_late)
        runs.execute(replace(run, runtime=Runtime.model_validate(shared)), Timed, world)
    (out / f"returned_{world.rank}.json").write_text(json.dumps(returned))
    if world.is_rank_zero:
        (out / "loads.json").write_text(json.dumps(Timed.loads))


if __name__ == "__main__":
    with process_group() as joint:
        _train(joint, *map(Path, sys.argv[1:]))
