"""A policy spread over the processes that train it (FSDP2: Zhao et al. 2023, arXiv 2304.11277; torch's fully_shard).

Every process keeps a part of each weight, its gradient and its optimizer state, and gathers one block of the model at
a time when it computes. Not tensor or pipeline parallelism: each process computes whole sequences.
"""

from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import PreTrainedModel

from dagrpo.checkpoints.sharded import load_sharded
from dagrpo.checkpoints.store import load_model
from dagrpo.distributed import World
from dagrpo.trainer.policy import Policy


def load_policy(folder: Path, world: World) -> Policy:
    """The policy of a checkpoint in float32, in eval mode, spread over the processes."""
    if world.size == 1:
        model, _ = load_model(folder, torch.float32)
        return Policy(model.to(world.device))
    mesh = init_device_mesh(world.device.type, (world.size,))
    policies: list[Policy] = []

    def shard(model: PreTrainedModel) -> None:
        policies.append(_sharded(Policy(model), mesh))

    load_sharded(folder, torch.float32, world, shard)
    (policy,) = policies
    return policy


def _sharded(policy: Policy, mesh: DeviceMesh) -> Policy:
    """Shard in place: each block of the model by itself, then what is left (embeddings, last norm, head)."""
    blocks = policy.model._no_split_modules or ()
    for module in policy.model.modules():
        if type(module).__name__ in blocks:
            _shard(module, mesh)
    _shard(policy, mesh)
    return policy


def _shard(module: torch.nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(module, mesh=mesh)
    assert isinstance(module, FSDPModule)
    # Gradients are summed: the loss of every process is divided by the tokens of all of them already.
    module.set_force_sum_reduction_for_comms(True)
    module.set_gradient_divide_factor(1.0)
