"""The trainer on a GPU: the same bits when an update is repeated, and the policy of one process from several."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu import alone
from tests.gpu.conftest import ONE, TWO
from tests.trainer import runs, updates

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.convert import convert
from dagrpo.determinism import compute_deterministically
from dagrpo.distributed import single_process
from dagrpo.listing import MANIFEST
from dagrpo.loopback import LOOPBACK
from dagrpo.models.fresh import make_fresh
from dagrpo.params.checkpoint import Checkpoint
from dagrpo.params.model import Fresh

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh model of next to no size, in the trainer's layout."""
    folder = tmp_path_factory.mktemp("small")
    shape = Fresh(hidden_size=32, num_hidden_layers=2, intermediate_size=64, max_position_embeddings=128)
    make_fresh(folder / "model", shape, torch.float32)
    convert(folder / "model", folder / "initial", Checkpoint())
    return folder / "initial"


def sharded_alone(small: Path, folder: Path) -> dict[str, Any]:
    """What alone.py says, from a process of its own."""
    environment = os.environ | LOOPBACK | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, alone.__file__, str(small), str(folder / "rendezvous")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def require_the_same(told: dict[str, Any]) -> None:
    """FSDP over a single process makes the update that is made without it."""
    assert told["moved"]
    assert told["sharded"]
    assert told["logprobs"] < 1e-5
    assert told["norm"] < 1e-5
    assert told["weights"] < 1e-5


def test_a_world_of_one_over_gloo_is_one_process(small: Path, tmp_path: Path) -> None:
    """The same with NCCL is below; this much needs no GPU."""
    require_the_same(sharded_alone(small, tmp_path))


@ONE
@pytest.mark.gpu
def test_a_world_of_one_over_nccl_is_one_process(small: Path, tmp_path: Path) -> None:
    told = sharded_alone(small, tmp_path)
    assert told["device"] == "cuda"
    assert "nccl" in told["backend"]
    require_the_same(told)


@TWO
@pytest.mark.gpu
def test_two_gpus_train_the_policy_of_one(small: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    updates.run(small, tmp_path / "one", 0, 3, single_process())
    runs.launch(2, updates.__file__, small, tmp_path / "two", 0, 3, 0)
    differences = compare(tmp_path / "one/policy", tmp_path / "two/policy").differences
    assert all(difference.largest is not None and difference.largest < 1e-3 for difference in differences)


@ONE
@pytest.mark.gpu
def test_updates_that_are_repeated_on_a_gpu_leave_the_same_bytes(small: Path, tmp_path: Path) -> None:
    compute_deterministically(True)
    try:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            updates.run(small, tmp_path / name, 0, 3, single_process())
    finally:
        torch.use_deterministic_algorithms(False)
    manifests = [(tmp_path / name / "policy" / MANIFEST).read_bytes() for name in ("first", "second")]
    assert manifests[0] == manifests[1]
