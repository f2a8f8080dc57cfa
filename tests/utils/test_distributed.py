"""What ranks tell each other, and how long they wait for it. (Training together: tests/trainer.)"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dagrpo.core.errors import TransientError, UserError
from dagrpo.utils.distributed import (
    ALLOCATOR_VARIABLES,
    World,
    _broken_connections_named,
    _with_one_software,
    process_group,
)

ROOT = Path(__file__).parents[2]
TENSORS = {
    "ids": torch.tensor([[3, 4], [5, 1 << 40]]),
    "mask": torch.tensor([True, False, True]),
    "values": torch.tensor([0.1, -1e-30]),
    "support": torch.tensor([7, (1 << 31) - 1], dtype=torch.int32),
}


def test_every_rank_has_rank_zeros_values_and_the_sum_of_all_and_waits_for_days_for_rank_zero_alone(
    tmp_path: Path,
) -> None:
    launch = [sys.executable, "-m", "dagrpo.pipeline.launch", "2", __file__, str(tmp_path)]
    done = subprocess.run(launch, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    for rank in range(2):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert told["value"] == {"text": "é", "number": 0.1}
        assert told["tensors"] == {name: tensor.tolist() for name, tensor in TENSORS.items()}
        assert told["dtypes"] == ["torch.int64", "torch.bool", "torch.float32", "torch.int32"]
        assert told["sum"] == 0 + 1
        assert told["waits"] == {"collective": 1800.0, "patient": 7 * 86400.0}, (
            "seconds: only rank 0 is waited for for days"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSoftware(World):
    """Two nodes of which the second has an older torch."""

    def gather(self, value: Any) -> list[Any]:
        return [value, "dagrpo 1234, torch 2.0"]


def test_nodes_with_other_software_are_refused_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    world = OtherSoftware(rank=0, size=2, device=torch.device("cpu"))
    with pytest.raises(UserError, match=r"rank 1 has dagrpo 1234, torch 2\.0; rank 0 has dagrpo .*torch"):
        _with_one_software(world)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert _with_one_software(world) is world, "on one machine there is one"


def _seconds(group: dist.ProcessGroup) -> float:
    return float(group._get_backend(torch.device("cpu")).options._timeout.total_seconds())


def _in_each_process(folder: Path) -> None:
    with process_group() as world:
        first = world.is_rank_zero
        tensors = world.broadcast_tensors(TENSORS if first else None)
        assert world.patient is not None
        assert dist.group.WORLD is not None
        told = {
            "value": world.broadcast({"text": "é", "number": 0.1} if first else None),
            "tensors": {name: tensor.tolist() for name, tensor in tensors.items()},
            "dtypes": [str(tensor.dtype) for tensor in tensors.values()],
            "sum": int(world.all_reduce(torch.tensor([world.rank])).item()),
            "waits": {"collective": _seconds(dist.group.WORLD), "patient": _seconds(world.patient)},
        }
        (folder / f"{world.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    _in_each_process(Path(sys.argv[1]))


@pytest.mark.parametrize(
    ("own", "settings"),
    [
        (None, "expandable_segments:True"),
        pytest.param("PYTORCH_CUDA_ALLOC_CONF", "", marks=pytest.mark.nightly),
    ],
)
def test_segments_of_a_gpu_expand_unless_the_user_has_set_the_allocator_up(own: str | None, settings: str) -> None:
    """In a process of its own, whose torch has no GPU and says what its allocator was told."""
    code = (
        "import torch; torch.cuda.is_available = lambda: True; from dagrpo.utils.distributed import expand_segments; "
        "torch._C._accelerator_setAllocatorSettings(''); expand_segments(); "
        "print(torch._C._accelerator_getAllocatorSettings())"
    )
    inherited = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_VARIABLES}
    variables = inherited if own is None else inherited | {own: "garbage_collection_threshold:0.8"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == settings


@pytest.mark.parametrize(
    "words",
    [
        "NCCL error: remote process exited or there was a network error, NCCL version 2.27.5\nncclRemoteError: A call failed",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234",
    ],
)
def test_a_broken_connection_to_another_rank_is_something_that_starts_again(words: str) -> None:
    with pytest.raises(TransientError, match="Another process of this training has ended"), _broken_connections_named():
        raise RuntimeError(words)
