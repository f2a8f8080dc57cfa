"""A policy that FSDP has sharded over a single process, against the same policy without FSDP: one update of each.

`python tests/gpu/alone.py MODEL RENDEZVOUS` prints the largest differences as JSON. With NCCL on a GPU, with gloo without one.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from dagrpo.trainer.batches.batch import TokenSequences
from dagrpo.trainer.model.fsdp import _shard_policy, load_policy
from dagrpo.trainer.model.optimizer import adamw, apply_gradients
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.utils.determinism import compute_deterministically
from dagrpo.utils.distributed import single_process


@dataclass(frozen=True, slots=True)
class Update:
    """What the update of one policy computed."""

    logprobs: torch.Tensor
    norm: float
    weights: dict[str, torch.Tensor]


def main(model: Path, rendezvous: Path) -> None:
    """Compute both updates and print how far they are apart."""
    world = single_process()
    compute_deterministically(True)  # AdamW's first step turns the rounding of a gradient near 0 into a whole step
    store = dist.FileStore(str(rendezvous), 1)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if world.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    whole, sharded = load_policy(model, world), load_policy(model, world)
    _shard_policy(sharded, init_device_mesh(world.device.type, (1,)), world)
    one, other = _update(whole), _update(sharded)
    told = {
        "backend": dist.get_backend_config(),
        "device": world.device.type,
        "logprobs": float((one.logprobs - other.logprobs).abs().max()),
        "norm": abs(one.norm - other.norm) / one.norm,
        "weights": max(float((one.weights[name] - other.weights[name]).abs().max()) for name in one.weights),
        "moved": one.norm > 0,
        "sharded": any(isinstance(each, DTensor) for each in sharded.parameters()),
    }
    print(json.dumps(told))
    dist.destroy_process_group()


def _update(policy: Policy) -> Update:
    sequences = TokenSequences.of([[5, 6, 7, 8, 9], [9, 8, 7]], [[False, False, True, True, True], [False, True, True]])
    padded = sequences.padded(range(2), 0, single_process().device)
    logprobs = token_logprobs(policy, padded, 1.0).logprobs
    (-logprobs.mean()).backward()  # type: ignore[no-untyped-call]
    norm = apply_gradients(adamw(policy.parameters(), 0.01), 1e-3, 1.0)
    return Update(logprobs.detach(), norm, {name: _whole(each) for name, each in policy.named_parameters()})


def _whole(weight: torch.Tensor) -> torch.Tensor:
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().cpu()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
