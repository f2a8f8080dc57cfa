"""Compile a policy's layers as the key `compile` asks."""

import os
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import MicroBatch
from dagrpo.trainer.config.runtime import Layout
from dagrpo.trainer.model.layout import EXAMPLE, MOST_NATS, MOST_NATS_CAST
from dagrpo.trainer.model.policy import WEIGHTS, Policy, token_logprobs
from dagrpo.trainer.model.vision_tower import tower_module
from dagrpo.utils.console import say
from dagrpo.utils.distributed import World
from dagrpo.utils.tempdirs import torch_caches

# Of the norm of a gradient, in float32 and in a type of fewer bits: more than rounding changes.
MOST_GRADIENT, MOST_GRADIENT_CAST = 1e-3, 0.1


def prepare_compilation(
    policy: Policy,
    requested: bool | None,
    world: World,
    layout: Layout,
    *,
    section: str = "runtime.training",
    backend: str = "inductor",
) -> bool:
    """Compile the layers if possible and return whether they are compiled, the same in every rank.

    Every rank calls this, after the policy was prepared for the layout. `requested`: the key `compile` of `section`. None: compile on a
    GPU without deterministic algorithms if model and machine support it; otherwise rank 0 logs the reason. Raises UserError if
    compilation is asked for and unsupported.
    """
    forget_compiled(policy)
    usual = world.device.type == "cuda" and not torch.are_deterministic_algorithms_enabled()
    if not (usual if requested is None else requested):
        return False
    reason = why_not_compiled(policy, layout) or _fault(policy, world, layout, backend)
    if reason is None:
        return True
    forget_compiled(policy)
    name = policy.model.config.model_type
    if requested:
        raise UserError(
            f"{section}.compile is true, but the layers of this {name} model cannot be compiled: {reason}; set it to false or null."
        )
    if world.is_rank_zero:
        say(f"The layers of this {name} model are not compiled ({section}.compile: null): {reason}.")
    return False


def _fault(policy: Policy, world: World, layout: Layout, backend: str) -> str | None:
    """Compile the layers, compute a few tokens and their gradients; return the fault that a rank finds, or None."""
    batch = EXAMPLE.lay_out(range(len(EXAMPLE)), 0, policy.model.device, layout)
    known = _computed(policy, batch)
    reason = None
    try:
        compile_layers(policy, backend)
    except (OSError, UserError) as error:  # the layers compute uncompiled below, as other ranks wait for this one's
        reason = f"there is no folder for compiled kernels ({error}); DAGRPO_CACHE names another"
    try:
        now = _computed(policy, batch)
    except TorchDynamoException as error:
        now, reason = known, f"torch says `{str(error).strip().partition(chr(10))[0]}`"
    difference = _difference(policy, world, now, known)  # in every rank
    reason = reason or difference
    if world.everywhere(reason is None):
        return None
    return reason or "another process computes other logprobs from compiled layers"


def _difference(
    policy: Policy, world: World, now: tuple[Tensor, Sequence[Tensor]], known: tuple[Tensor, Sequence[Tensor]]
) -> str | None:
    """Return by how much logprobs or gradients differ, if that is more than rounding. Every rank calls this."""
    nats, share = (MOST_NATS, MOST_GRADIENT) if policy.dtype == WEIGHTS else (MOST_NATS_CAST, MOST_GRADIENT_CAST)
    pairs = [*zip(now[1], known[1], strict=True)]
    squares = [torch.stack([(one - other).square().sum() for one, other in pairs]).sum()]
    squares.append(torch.stack([other.square().sum() for _, other in pairs]).sum())
    apart, whole = world.all_reduce(torch.stack(squares)).sqrt().tolist()
    difference = float((now[0] - known[0]).abs().max())
    if difference <= nats and apart <= share * whole:
        return None
    return f"logprobs differ by {difference:.1e} and the gradient by {apart / whole:.1e} of its norm from those of uncompiled layers"


def _computed(policy: Policy, batch: MicroBatch) -> tuple[Tensor, list[Tensor]]:
    """Return the logprobs of a batch, [tokens], and this rank's part of the gradient of their sum for each trained weight.

    With the gradients of a second call this takes no more memory than AdamW's state, which is not allocated yet.
    """
    with torch.enable_grad():
        logprobs = token_logprobs(policy, batch, 1.0).logprobs
        torch.autograd.backward(logprobs.sum())
    trained = [each for each in policy.parameters() if each.requires_grad]
    gradients = [each.new_zeros(()) if each.grad is None else each.grad for each in trained]
    policy.zero_grad(set_to_none=True)
    if isinstance(policy, FSDPModule):
        policy.reshard()  # an optimizer takes the parameters as they are now
    return logprobs.detach(), [each.to_local() if isinstance(each, DTensor) else each for each in gradients]


# Graphs of a layer's code at most. It has one for each combination of: gradients or none, one sequence or several, shared prompts or
# none, a window or none, an adapter or none, an input that needs a gradient (the first layer's needs none beside an adapter) or not.
MOST_GRAPHS = 64
# Kernels are not chosen by their measured times, which differ from process to process: the same graph gives the same bits.
REPEATABLE: dict[str, str | int | bool] = {"deterministic": True, "max_autotune": False}


def compile_layers(policy: Policy, backend: str = "inductor") -> None:
    """Compile each layer of a policy with torch at its first use, as a whole and for batches of any lengths.

    Activation recomputation becomes part of the graph if `checkpoint_activations` came before. Inductor's output is
    cached for the next run. Raises UserError if another user may write to the cache folder, and OSError if it cannot be created:
    the layers are not compiled then.
    """
    if backend == "inductor":
        os.environ.update(torch_caches(os.environ))
    for layer in layers_of(policy):
        layer.compile(
            dynamic=True,
            fullgraph=True,
            backend=backend,
            recompile_limit=MOST_GRAPHS,
            options=REPEATABLE if backend == "inductor" else None,
        )


def forget_compiled(policy: Policy) -> None:
    """Compute the layers of a policy uncompiled from now on."""
    for layer in layers_of(policy):
        layer._compiled_call_impl = None


def layers_of(policy: Policy) -> list[GradientCheckpointingLayer]:
    """Return the separately compiled layers: those of the language model.

    The layers of a vision tower split their rows by the values of a tensor, which ends a graph.
    """
    tower = tower_module(policy.model)
    left_out = set() if tower is None else set(tower.modules())
    layers = (each for each in policy.model.modules() if isinstance(each, GradientCheckpointingLayer))
    return [each for each in layers if each not in left_out]


def why_not_compiled(policy: Policy, layout: Layout) -> str | None:
    """Return the reason why the layers of this policy stay uncompiled in this layout; None if nothing rules compilation out."""
    model, packed = policy.model, layout == "packed"
    reasons = {
        "it is a mixture of experts, whose tokens are routed by their values": is_mixture_of_experts(model.config),
        "packed rows on a CPU are attended to by their lengths": packed and model.device.type == "cpu",
        "transformers does not mark its layers": not layers_of(policy),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
