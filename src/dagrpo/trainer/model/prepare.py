"""Prepare a policy: layout of micro-batches, shared prompts, compiled layers.

What runtime.training and runtime.sft leave open is decided here. Packed rows are for models whose tokens interact only in attention,
and which take position ids. Unless a model's class and configuration rule that out, it is measured, as compiled layers are.
"""

import inspect
import os
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import MicroBatch, TokenSequences
from dagrpo.trainer.batches.micro_batches import Budget, head_chunk_of, reduction_of, usual_layout, usual_sharing
from dagrpo.trainer.config.runtime import Layout, TrainingRuntime
from dagrpo.trainer.model.attention import IN_FLOAT32, PACKED, is_packed_by_kernel
from dagrpo.trainer.model.policy import WEIGHTS, Policy, token_logprobs
from dagrpo.trainer.model.vision_tower import tower_module
from dagrpo.utils.console import say
from dagrpo.utils.distributed import World
from dagrpo.utils.tempdirs import torch_caches

# Three sequences of two lengths. The first and the last share a prompt.
EXAMPLE = TokenSequences.of(
    [[1, 2, 3, 4, 5, 6], [7, 8, 3], [1, 2, 3, 6, 7, 2]],
    [[False, False, False, True, True, True], [False, True, True], [False, False, False, True, True, True]],
)
# The same with another second sequence. It is the shortest, and so the first of a row.
OTHER_NEIGHBOUR = TokenSequences.of(
    [[1, 2, 3, 4, 5, 6], [5, 2, 8], [1, 2, 3, 6, 7, 2]],
    [[False, False, False, True, True, True], [False, True, True], [False, False, False, True, True, True]],
)
ALL = range(len(EXAMPLE))
MOST_NATS = 1e-3  # by which logprobs of two layouts, or of compiled layers, may differ in float32
MOST_NATS_CAST = 1.0  # in a type of fewer bits, which rounds the logprob of an unlikely token by tenths
MOST_GRADIENT, MOST_GRADIENT_CAST = 1e-3, 0.1  # the same for a gradient, of its norm
BY_SCALED_DOT_PRODUCTS = ("sdpa", IN_FLOAT32, PACKED)
ATTENTION = {"full_attention", "sliding_attention"}  # kinds of layers
# Graphs of a layer's code at most. It has one for each combination of: gradients or none, one sequence or several, shared prompts or
# none, a window or none, an adapter or none, an input that needs a gradient (the first layer's needs none beside an adapter) or not.
MOST_GRAPHS = 64
# Kernels are not chosen by their measured times, which differ from process to process: the same graph gives the same bits.
REPEATABLE: dict[str, str | int | bool] = {"deterministic": True, "max_autotune": False}


def resolve_budget(runtime: TrainingRuntime, policy: Policy, world: World) -> Budget:
    """Return the budget with layout, share_prompts and compile filled in, and prepare the policy for it. Every rank calls this.

    Raises UserError if the policy does not support a requested setting.
    """
    requested, on_gpu = runtime.share_prompts, policy.model.device.type == "cuda"
    layout = prepare_layout(policy, runtime.layout, world, share_prompts=bool(requested))
    if requested and layout == "padded":
        raise UserError(
            f"prompts are shared only in packed rows, and the sequences of this {policy.model.config.model_type} model are padded: set "
            "runtime.training.share_prompts to false."
        )
    return Budget(
        sequences=runtime.micro_batch_size,
        tokens=runtime.micro_batch_tokens,
        patches=runtime.micro_batch_patches,
        head_chunk_tokens=head_chunk_of(runtime, on_gpu=on_gpu, linear_head=policy.has_linear_head),
        layout=layout,
        share_prompts=usual_sharing(layout, on_gpu=on_gpu) if requested is None else requested,
        reduce_gradients=reduction_of(runtime, on_gpu=on_gpu),
        compiled=prepare_compilation(policy, runtime.compile, world, layout),
    )


def prepare(policy: Policy, budget: Budget, world: World) -> None:
    """Prepare a policy for a complete budget, such as that of a recorded step, or raise UserError. Every rank calls this."""
    prepare_layout(policy, budget.layout, world)
    prepare_compilation(policy, budget.compiled, world, budget.layout)


@torch.no_grad()
def prepare_layout(
    policy: Policy,
    requested: Layout | None,
    world: World,
    *,
    share_prompts: bool = False,
    section: str = "runtime.training",
) -> Layout:
    """Return the layout to compute in, the same in every rank; if packed, prepare the policy for it. Every rank calls this.

    `requested`: the key `layout` of `section`. None: packed where that is faster and the model supports it; otherwise rank 0
    logs the reason. Raises UserError if packed is asked for and the model does not support it.
    """
    device, config = policy.model.device, policy.model.config
    usual = usual_layout(
        narrow=is_packed_by_kernel(config.get_text_config(), policy.dtype, device),
        on_gpu=device.type == "cuda",
        share_prompts=share_prompts,
    )
    if not world.everywhere((requested or usual) == "packed"):
        return "padded"
    expected = _unfit_kind(policy)
    reason = expected or _unfit_class(policy) or _unfit_numbers(policy, world)
    if reason is None:
        return "packed"
    name = config.model_type
    if requested is not None:
        raise UserError(
            f"{section}.layout is packed, but this {name} model cannot compute sequences end to end in one row: {reason}; set layout to "
            "padded or null."
        )
    if expected is None and world.is_rank_zero:
        say(f"Sequences of this {name} model are padded, not packed ({section}.layout: null): {reason}.")
    return "padded"


def _first_that_holds(reasons: Mapping[str, bool]) -> str | None:
    return next((reason for reason, holds in reasons.items() if holds), None)


def _unfit_kind(policy: Policy) -> str | None:
    """Return the reason why a model of this kind is never packed, as in docs/algorithms.md; None if nothing rules it out."""
    model = policy.model
    others = sorted(set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - ATTENTION)
    return _first_that_holds(
        {
            "it takes pictures, for which a row has no place": policy.tower is not None,
            "it carries a state from each token of a row to the next": getattr(model, "_is_stateful", False),
            f"it has layers of another kind than attention to all tokens or a window ({', '.join(others)})": bool(
                others
            ),
        }
    )


def _unfit_class(policy: Policy) -> str | None:
    """Return the reason why a model class cannot be packed; None if none is visible, so that logprobs are measured.

    A model that supports flash attention passes its window to it, and needs no other mask.
    """
    model = policy.model
    taken = inspect.signature(model.base_model.forward).parameters
    attention = model.config._attn_implementation
    return _first_that_holds(
        {
            "transformers does not support flash attention in it": not getattr(model, "_supports_flash_attn", False),
            f"it attends by `{attention}`, which cannot be replaced": attention not in BY_SCALED_DOT_PRODUCTS,
            "it takes no position ids, which tell where a sequence begins": "position_ids" not in taken,
            "its forward pass forwards no keyword arguments to attention, which needs the sequence boundaries": not any(
                each.kind == each.VAR_KEYWORD for each in taken.values()
            ),
        }
    )


def _unfit_numbers(policy: Policy, world: World) -> str | None:
    """Return the error of a few packed tokens' logprobs in some rank; None if they are right, and the policy stays prepared."""
    before = policy.model.config._attn_implementation
    policy.take_packed()
    if policy.model.config._attn_implementation != PACKED:
        return "transformers does not let its attention be replaced"
    reasons = [_difference(policy), _leak(policy)]  # both in every rank: forward passes of FSDP are collectives
    if isinstance(policy, FSDPModule):
        policy.reshard()  # an optimizer takes the parameters as they are now
    if world.everywhere(not any(reasons)):
        return None
    policy.model.set_attn_implementation(before)
    return next(
        filter(None, reasons), "another process computes other logprobs from packed rows than from padded sequences"
    )


def _difference(policy: Policy) -> str | None:
    """Return by how much packed logprobs differ from padded ones, if that is more than rounding, else None.

    Compared in float32 on a CPU. FSDP and 16-bit GPU kernels can only be compared in the narrow type.
    """
    device = policy.model.device
    casts = policy.dtype.itemsize < WEIGHTS.itemsize and (isinstance(policy, FSDPModule) or device.type == "cuda")
    batches: list[MicroBatch] = [EXAMPLE.padded(ALL, 0, device)]
    batches += [EXAMPLE.packed(ALL, device, share_prompts=share) for share in (False, True)]
    padded, *packed = (token_logprobs(policy if casts else policy.__call__, batch, 1.0).logprobs for batch in batches)
    difference = float((padded - torch.stack(packed)).abs().max())
    most, dtype = (MOST_NATS_CAST, policy.dtype) if casts else (MOST_NATS, WEIGHTS)
    if difference <= most:
        return None
    return (
        f"its logprobs differ by up to {difference:.2g} nats from those of padded sequences, and rounding in "
        f"{str(dtype).removeprefix('torch.')} explains at most {most:g}"
    )


def _leak(policy: Policy) -> str | None:
    """Return by how much a sequence's logprobs change with its neighbour in the row; None if not by a bit.

    A mixture of experts is left out: the number of tokens of an expert decides how its products are rounded.
    """
    if is_mixture_of_experts(policy.model.config.get_text_config()):
        return None
    changes = [_change(policy, share_prompts=share) for share in (False, True)]  # both in every rank
    change = float(torch.stack(changes).max())
    if change == 0:
        return None
    return (
        f"the logprobs of a sequence change by up to {change:.2g} nats when another sequence in the row changes; they must not change at "
        "all"
    )


def _change(policy: Policy, *, share_prompts: bool) -> Tensor:
    """Return the largest logprob change in the first or the last sequence of the example when the second one changes. []"""
    packed = (each.packed(ALL, policy.model.device, share_prompts=share_prompts) for each in (EXAMPLE, OTHER_NEIGHBOUR))
    one, other = (token_logprobs(policy, batch, 1.0).logprobs for batch in packed)
    first, _, last = torch.split(one - other, EXAMPLE.trained)
    return torch.cat([first, last]).abs().max()


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
    _forget_compiled(policy)
    usual = world.device.type == "cuda" and not torch.are_deterministic_algorithms_enabled()
    if not (usual if requested is None else requested):
        return False
    device, name = policy.model.device, policy.model.config.model_type
    reason = _first_that_holds(
        {
            "it is a mixture of experts, whose tokens are routed by their values": is_mixture_of_experts(
                policy.model.config
            ),
            "packed rows on a CPU are attended to by their lengths": layout == "packed" and device.type == "cpu",
            "transformers does not mark its layers": not _layers_of(policy),
        }
    )
    reason = reason or _fault_of_compiled(policy, world, layout, backend)
    if reason is None:
        return True
    _forget_compiled(policy)
    if requested:
        raise UserError(
            f"{section}.compile is true, but the layers of this {name} model cannot be compiled: {reason}; set it to false or null."
        )
    if world.is_rank_zero:
        say(f"The layers of this {name} model are not compiled ({section}.compile: null): {reason}.")
    return False


def _fault_of_compiled(policy: Policy, world: World, layout: Layout, backend: str) -> str | None:
    """Compile the layers, compute a few tokens and their gradients; return the fault that a rank finds, or None."""
    batch = EXAMPLE.lay_out(ALL, 0, policy.model.device, layout)
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
    difference = _difference_of_compiled(policy, world, now, known)  # in every rank
    reason = reason or difference
    if world.everywhere(reason is None):
        return None
    return reason or "another process computes other logprobs from compiled layers"


def _difference_of_compiled(
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


def compile_layers(policy: Policy, backend: str = "inductor") -> None:
    """Compile each layer of a policy with torch at its first use, as a whole and for batches of any lengths.

    Activation recomputation becomes part of the graph if `checkpoint_activations` came before. Inductor's output is
    cached for the next run. Raises UserError if another user may write to the cache folder, and OSError if it cannot be created:
    the layers are not compiled then.
    """
    if backend == "inductor":
        os.environ.update(torch_caches(os.environ))
    for layer in _layers_of(policy):
        layer.compile(
            dynamic=True,
            fullgraph=True,
            backend=backend,
            recompile_limit=MOST_GRAPHS,
            options=REPEATABLE if backend == "inductor" else None,
        )


def _forget_compiled(policy: Policy) -> None:
    """Compute the layers of a policy uncompiled from now on."""
    for layer in _layers_of(policy):
        layer._compiled_call_impl = None


def _layers_of(policy: Policy) -> list[GradientCheckpointingLayer]:
    """Return the separately compiled layers: those of the language model.

    The layers of a vision tower split their rows by the values of a tensor, which ends a graph.
    """
    tower = tower_module(policy.model)
    left_out = set() if tower is None else set(tower.modules())
    layers = (each for each in policy.model.modules() if isinstance(each, GradientCheckpointingLayer))
    return [each for each in layers if each not in left_out]
