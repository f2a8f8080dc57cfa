"""Several GPUs together: sums among them, and a policy that they share.

    python -m dagrpo.pipeline.launch 2 benchmarks/gpu/several.py [--toy]

prints one line of JSON, of rank 0. With NCCL on GPUs, with gloo on a CPU.
"""

import argparse
import json
import time
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.gpu import shapes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from dagrpo.trainer.model.fsdp import _shard_policy
from dagrpo.trainer.model.optimizer import adamw, apply_gradients
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.utils.distributed import World, process_group

MEBIBYTES, TOY_MEBIBYTES = 512, 1  # that are summed
REPEATED = 5
LARGEST_DIFFERENCE = 0.1  # of logprobs in bfloat16, between a policy that is shared and a whole one
LENGTH, TOY_LENGTH = 2048, 32  # tokens of a sequence


def main() -> None:
    """Measure in every rank; rank 0 prints. AssertionError: the ranks disagree, or the shared policy is another one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", action="store_true", help="a model that a CPU computes in a second")
    toy = parser.parse_args().toy
    with process_group() as world:
        found = {
            "device": world.device.type,
            "backend": dist.get_backend_config(),
            "processes": world.size,
            "all_reduce_bytes_per_second": all_reduce_speed(world, (TOY_MEBIBYTES if toy else MEBIBYTES) << 20),
        } | shared_update(world, toy=toy)
        if world.is_rank_zero:
            print(json.dumps(found))


def all_reduce_speed(world: World, size: int) -> float:
    """Return bytes a second through each device's link: 2 (n - 1) / n of the tensor's bytes (nccl-tests, "bus bandwidth")."""
    values = torch.full((size // 4,), float(world.rank + 1), device=world.device)
    expected = world.size * (world.size + 1) / 2
    dist.all_reduce(values)
    assert float(values[0]) == float(values[-1]) == expected, (
        f"the sum of the ranks is {float(values[0])}, not {expected}"
    )
    values.zero_()
    begun = _now(world)
    for _ in range(REPEATED):
        dist.all_reduce(values)
    return REPEATED * size * 2 * (world.size - 1) / world.size / (_now(world) - begun)


def shared_update(world: World, *, toy: bool) -> dict[str, Any]:
    """Return the seconds of an update of a policy that all ranks share (FSDP2), and how far its logprobs are from a whole one's."""
    shape, length = (shapes.TOY, TOY_LENGTH) if toy else (shapes.QWEN3_0_6B, LENGTH)
    whole, shared = (Policy(shapes.fresh(shape).to(world.device).eval(), dtype=torch.bfloat16) for _ in range(2))
    rows = shapes.made_up([length] * 2, int(shape["vocab_size"])).sequences.padded(range(2), 0, world.device)
    with torch.no_grad():
        expected = token_logprobs(whole, rows, 1.0).logprobs
    del whole
    _shard_policy(shared, init_device_mesh(world.device.type, (world.size,)), world)
    assert any(isinstance(each, DTensor) for each in shared.parameters())
    optimizer, begun = adamw(shared.parameters(), 0.01), _now(world)
    logprobs = token_logprobs(shared, rows, 1.0).logprobs
    (-logprobs.mean() / world.size).backward()  # type: ignore[no-untyped-call]  # gradients are summed over the ranks
    norm = apply_gradients(optimizer, 1e-3, 1.0)
    seconds = _now(world) - begun
    difference = float((logprobs.detach() - expected).abs().max())
    assert difference < LARGEST_DIFFERENCE, f"logprobs of the shared policy are {difference} from those of a whole one"
    total = float(world.all_reduce(torch.tensor(norm)))
    assert norm > 0, "the gradient is zero"
    assert abs(total / world.size - norm) < 1e-4 * norm, f"rank {world.rank} has another gradient: {norm}"
    return {"shared_update_seconds": seconds, "largest_difference_of_logprobs": difference, "gradient_norm": norm}


def _now(world: World) -> float:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    return time.perf_counter()


if __name__ == "__main__":
    main()
