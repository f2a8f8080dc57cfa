"""Policy sharded over the ranks that train it (FSDP2).

See Zhao et al. 2023 (arXiv 2304.11277) and torch's fully_shard. Every rank keeps a part of each weight, its gradient and its
optimizer state, and gathers one block of the model at a time when it computes. Each rank computes whole sequences: there is
neither tensor nor pipeline parallelism. On several nodes the ranks of each may have a copy among them (HSDP): then only gradients
travel between nodes.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from dagrpo.checkpoints.lora_layers import low_rank_updates
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.sharded import model_to_shard, read_weights
from dagrpo.checkpoints.store import load_model
from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.core.errors import UserError
from dagrpo.core.section import HeadDtype
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.config.lora import Lora, untrained_tower
from dagrpo.trainer.config.runtime import Reduction
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.attention import attend_in_float32
from dagrpo.trainer.model.lora import WithoutAdapter, add_adapter, begin
from dagrpo.trainer.model.policy import WEIGHTS, Policy, Reference, require_known_logits
from dagrpo.trainer.model.vision_tower import Tower, Vision, tower_module
from dagrpo.utils.distributed import World

NO_ADAPTER = Lora()


def load_policy(
    folder: Path,
    world: World,
    vision: Vision = "trained",
    lora: Lora = NO_ADAPTER,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    head_dtype: HeadDtype = None,
    activation_checkpointing: bool = False,
) -> Policy:
    """Return the policy of a checkpoint in float32, in eval mode, on this rank's device, sharded over the ranks.

    `dtype`: the computing type, float32, bfloat16 or float16. `head_dtype`: that of its head; None: `dtype`.
    `vision`: train the vision tower of a model that has one; every rank has the whole of a frozen one.
    `activation_checkpointing`: compute each layer again in the backward pass, which saves memory.
    `lora`: the adapter that is trained in the place of the weights, initialised by `seed`.
    Raises UserError if the checkpoint is incomplete, its model computes its logits in an unknown way, it lacks a tower to freeze,
    its layers match no target of the adapter, or none of its layers can be recomputed.
    """
    policy = _load_checked(folder, world, frozen=vision == "frozen", lora=lora, dtype=dtype)
    policy.float32_head = head_dtype == "float32"
    begin(policy.model, seed)
    if activation_checkpointing:
        checkpoint_activations(policy.model)
    if vision == "frozen" and policy.tower is None:
        raise UserError(
            f"{folder} holds a {policy.model.config.model_type} model, which has no vision tower to be frozen: set training.vision "
            "and sft.vision to trained, or choose a vision-language model."
        )
    return policy


def load_trained_policy(
    initial: Path, world: World, training: Training, rollout: Rollout, seed: int, *, activation_checkpointing: bool
) -> Policy:
    """Return the policy that a run begins with, by these sections. Raises the errors of `load_policy`."""
    return load_policy(
        initial,
        world,
        training.vision,
        training.lora,
        seed,
        dtype=NAMED_DTYPES[training.dtype],
        head_dtype=rollout.head_dtype,
        activation_checkpointing=activation_checkpointing,
    )


def load_reference(folder: Path, world: World, policy: Policy) -> Reference:
    """Return the untrained policy of a checkpoint as the reference of a policy that began with it.

    For a policy with an adapter, that is the policy itself without it.
    """
    if low_rank_updates(policy.model):
        return WithoutAdapter(policy)
    reference = _load_checked(folder, world, frozen=True, dtype=policy.dtype).requires_grad_(False)
    reference.float32_head = policy.float32_head
    if policy.tower is not None and policy.tower.frozen:
        reference.tower = policy.tower  # it computes the same features
    return reference


def reduce_next(policy: Policy, reduction: Reduction, *, is_last: bool) -> None:
    """Set before a backward pass whether it adds up the gradients of all ranks, or leaves that to the mini-batch's last one.

    Until then each rank keeps whole gradients, in float32. Every rank calls this; it changes nothing for a single rank.
    """
    if isinstance(policy, FSDPModule):
        policy.set_requires_gradient_sync(is_last or reduction == "each_micro_batch")


def _load_checked(folder: Path, world: World, *, frozen: bool, dtype: torch.dtype, lora: Lora = NO_ADAPTER) -> Policy:
    policy = _load(folder, world, frozen=frozen, dtype=dtype, lora=lora)
    # Attention of another kind may add terms that the one in float32 lacks, such as sinks.
    is_replaceable = policy.model.config._attn_implementation == "sdpa"
    if dtype != WEIGHTS and world.device.type == "cpu" and is_replaceable:
        attend_in_float32(policy.model)
    require_known_logits(policy)
    return policy


def _load(folder: Path, world: World, *, frozen: bool, dtype: torch.dtype, lora: Lora) -> Policy:
    if world.size == 1:
        model, _ = load_model(folder, WEIGHTS)
        return _prepare(model.to(world.device), folder, frozen=frozen, shared=False, dtype=dtype, lora=lora)
    model, weights = model_to_shard(folder, WEIGHTS, world)
    policy = _prepare(model, folder, frozen=frozen, shared=not frozen, dtype=dtype, lora=lora)
    _shard_policy(policy, _mesh_of(world), world)
    if weights is not None:
        read_weights(model, weights)
    return policy


def _mesh_of(world: World) -> DeviceMesh:
    """Return the ranks that a copy of the policy is sharded over; of several copies, one to a node, [copies, ranks of each]."""
    if world.copies == 1:
        return init_device_mesh(world.device.type, (world.size,))
    return init_device_mesh(
        world.device.type, (world.copies, world.size // world.copies), mesh_dim_names=("nodes", "ranks")
    )


def _prepare(
    model: PreTrainedModel, folder: Path, *, frozen: bool, shared: bool, dtype: torch.dtype, lora: Lora
) -> Policy:
    module = tower_module(model)
    tower: Tower | None = None
    if module is not None:
        module.requires_grad_(not frozen)
        tower = Tower(model, folder, frozen=frozen, shared=shared)
    policy = Policy(model, tower, dtype)
    if not lora.is_on:
        return policy
    if policy.tower is not None and not frozen and not lora.vision:
        raise UserError(f"{untrained_tower('training (or sft)')}.")
    if policy.tower is None and lora.vision:
        raise UserError(
            f"lora.vision is true, but {folder} holds a {model.config.model_type} model, which has no vision tower: set it to "
            "false, or choose a vision-language model."
        )
    add_adapter(model, lora)
    return policy


def _shard_policy(policy: Policy, mesh: DeviceMesh, world: World) -> None:
    """Shard in place: each block of the model by itself, then the remainder (embeddings, last norm, head)."""
    blocks, whole = policy.model._no_split_modules or (), _whole_module(policy)
    own = set(whole.modules())
    for module in policy.model.modules():
        if type(module).__name__ in blocks and module not in own:
            _shard(module, mesh, policy.dtype)
    _shard(policy, mesh, policy.dtype, set(whole.to(world.device).parameters()))
    register_fsdp_forward_method(policy, "own_logits_differ")


def _whole_module(policy: Policy) -> torch.nn.Module:
    """Return the module that every rank has all of: a frozen tower, so that each rank computes features for its share of the pictures."""
    module = tower_module(policy.model)
    return module if module is not None and policy.tower is not None and policy.tower.frozen else torch.nn.Module()


def _shard(
    module: torch.nn.Module, mesh: DeviceMesh, dtype: torch.dtype, ignored: set[torch.nn.Parameter] | None = None
) -> None:
    precision = MixedPrecisionPolicy(param_dtype=None if dtype == WEIGHTS else dtype, reduce_dtype=WEIGHTS)
    fully_shard(module, mesh=mesh, mp_policy=precision, ignored_params=ignored)
    assert isinstance(module, FSDPModule)
    # Gradients are summed: the loss of every rank is divided by the tokens of all of them already.
    module.set_force_sum_reduction_for_comms(True)
    module.set_gradient_divide_factor(1.0)


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Recompute each layer of a model, and of its vision tower, in the backward pass: a layer keeps only its inputs.

    Chen et al. 2016 (arXiv 1604.06174), by torch's checkpoint without reentrance. transformers' own switch works only in train mode,
    where dropout is on, and it would read the float32 weights again where a forward pass had cast them. The bits of values and gradients
    stay. The model must not keep keys and values (`use_cache`): they would be kept twice.
    Raises UserError if transformers supports recomputation of no layer of the model's family.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(
            f"{type(model).__name__} ({model.config.model_type}) has no layers that could be computed again: set "
            "activation_checkpointing to false (runtime.training, runtime.sft)."
        )
    for layer in layers:
        layer.forward = partial(_recomputed, _OwnForward(layer))


class _OwnForward(torch.nn.Module):
    """Forward method of a layer's class, which `checkpoint_activations` has replaced in the layer itself."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return type(self.layer).forward(self.layer, *inputs, **options)


def _recomputed(layer: _OwnForward, /, *inputs: Any, **options: Any) -> Any:
    """Compute the layer, now and again in the backward pass.

    By then the cast weights that `functional_call` had put in the place of the layer's weights are gone, so they are passed along.
    """
    if not torch.is_grad_enabled():
        return layer(*inputs, **options)
    cast = {name: each for name, each in layer.named_parameters() if not isinstance(each, torch.nn.Parameter)}
    compute = partial(_compute_with, layer, cast) if cast else layer
    return checkpoint(compute, *inputs, use_reentrant=False, preserve_rng_state=False, **options)


def _compute_with(layer: _OwnForward, weights: Mapping[str, torch.Tensor], /, *inputs: Any, **options: Any) -> Any:
    return functional_call(layer, dict(weights), inputs, options)
