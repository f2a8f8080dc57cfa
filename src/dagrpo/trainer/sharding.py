"""A policy spread over the ranks that train it (FSDP2: Zhao et al. 2023, arXiv 2304.11277; torch's fully_shard).

Every rank keeps a part of each weight, its gradient and its optimizer state, and gathers one block of the model at a
time when it computes. Not tensor or pipeline parallelism: each rank computes whole sequences.
"""

from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.sharded import model_to_shard, read_weights
from dagrpo.checkpoints.store import load_model
from dagrpo.distributed import World
from dagrpo.errors import UserError
from dagrpo.trainer.policy import Policy, require_known_logits
from dagrpo.trainer.tower import Tower, Vision, tower_module


def load_policy(folder: Path, world: World, vision: Vision = "trained") -> Policy:
    """The policy of a checkpoint in float32, in eval mode, on this rank's device, sharded over the ranks.

    `vision`: whether the vision tower of a model that has one is trained; every rank has the whole of one that is frozen.
    UserError: the checkpoint is not whole, its model makes its logits in a way that the trainer does not know, or a tower
    that is to be frozen is not there.
    """
    policy = _loaded(folder, world, frozen=vision == "frozen")
    if vision == "frozen" and policy.tower is None:
        raise UserError(
            f"{folder} holds a {policy.model.config.model_type} model, which has no vision tower to be frozen: set training.vision "
            "and sft.vision to trained, or choose a vision-language model."
        )
    return policy


def load_reference(folder: Path, world: World, policy: Policy) -> Policy:
    """The same with nothing trained, to stay as it is beside a policy that began with this checkpoint."""
    reference = _loaded(folder, world, frozen=True).requires_grad_(False)
    if policy.tower is not None and policy.tower.frozen:
        reference.tower = policy.tower  # it makes the same features
    return reference


def _loaded(folder: Path, world: World, *, frozen: bool) -> Policy:
    policy = _load(folder, world, frozen=frozen)
    require_known_logits(policy)
    return policy


def _load(folder: Path, world: World, *, frozen: bool) -> Policy:
    if world.size == 1:
        model, _ = load_model(folder, torch.float32)
        return _with_tower(model.to(world.device), folder, frozen=frozen, shared=False)
    model, weights = model_to_shard(folder, torch.float32, world)
    policy = _with_tower(model, folder, frozen=frozen, shared=not frozen)
    _shard_policy(policy, init_device_mesh(world.device.type, (world.size,)), world)
    if weights is not None:
        read_weights(model, weights)
    return policy


def _with_tower(model: PreTrainedModel, folder: Path, *, frozen: bool, shared: bool) -> Policy:
    module = tower_module(model)
    if module is None:
        return Policy(model)
    module.requires_grad_(not frozen)
    return Policy(model, Tower(model, folder, frozen=frozen, shared=shared))


def _shard_policy(policy: Policy, mesh: DeviceMesh, world: World) -> None:
    """Shard in place: each block of the model by itself, then what is left (embeddings, last norm, head)."""
    blocks, whole = policy.model._no_split_modules or (), _whole_module(policy)
    own = set(whole.modules())
    for module in policy.model.modules():
        if type(module).__name__ in blocks and module not in own:
            _shard(module, mesh)
    _shard(policy, mesh, set(whole.to(world.device).parameters()))
    register_fsdp_forward_method(policy, "own_logits_differ")


def _whole_module(policy: Policy) -> torch.nn.Module:
    """What every rank has all of: a tower that is frozen, so that each makes the features of its own pictures."""
    module = tower_module(policy.model)
    return module if module is not None and policy.tower is not None and policy.tower.frozen else torch.nn.Module()


def _shard(module: torch.nn.Module, mesh: DeviceMesh, ignored: set[torch.nn.Parameter] | None = None) -> None:
    fully_shard(module, mesh=mesh, ignored_params=ignored)
    assert isinstance(module, FSDPModule)
    # Gradients are summed: the loss of every rank is divided by the tokens of all of them already.
    module.set_force_sum_reduction_for_comms(True)
    module.set_gradient_divide_factor(1.0)
