"""A policy spread over the ranks that train it (FSDP2: Zhao et al. 2023, arXiv 2304.11277; torch's fully_shard).

Every rank keeps a part of each weight, its gradient and its optimizer state, and gathers one block of the model at a
time when it computes. Not tensor or pipeline parallelism: each rank computes whole sequences.
"""

from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from dagrpo.checkpoints.sharded import model_to_shard, read_weights
from dagrpo.checkpoints.store import load_model
from dagrpo.distributed import World
from dagrpo.trainer.policy import Policy, require_known_logits


def load_policy(folder: Path, world: World) -> Policy:
    """The policy of a checkpoint in float32, in eval mode, on this rank's device, sharded over the ranks.

    UserError: the checkpoint is not whole, or its model makes its logits in a way that the trainer does not know.
    """
    policy = _load(folder, world)
    require_known_logits(policy)
    return policy


def _load(folder: Path, world: World) -> Policy:
    if world.size == 1:
        model, _ = load_model(folder, torch.float32)
        return Policy(model.to(world.device))
    model, weights = model_to_shard(folder, torch.float32, world)
    policy = Policy(model)
    _shard_policy(policy, init_device_mesh(world.device.type, (world.size,)))
    if weights is not None:
        read_weights(model, weights)
    return policy


def _shard_policy(policy: Policy, mesh: DeviceMesh) -> None:
    """Shard in place: each block of the model by itself, then what is left (embeddings, last norm, head)."""
    blocks = policy.model._no_split_modules or ()
    for module in policy.model.modules():
        if type(module).__name__ in blocks:
            _shard(module, mesh)
    _shard(policy, mesh)
    register_fsdp_forward_method(policy, "own_logits_differ")


def _shard(module: torch.nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(module, mesh=mesh)
    assert isinstance(module, FSDPModule)
    # Gradients are summed: the loss of every rank is divided by the tokens of all of them already.
    module.set_force_sum_reduction_for_comms(True)
    module.set_gradient_divide_factor(1.0)
