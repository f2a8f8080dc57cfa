"""Choose padded or packed micro-batches as the key `layout` asks.

The key is in runtime.training and runtime.sft. Packed rows are for models whose tokens interact only in attention, and which
take position ids. Unless a model's class and configuration rule that out, it is measured.
"""

import inspect

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import MicroBatch, TokenSequences
from dagrpo.trainer.batches.budget import usual_layout
from dagrpo.trainer.config.runtime import Layout
from dagrpo.trainer.model.attention import NAME as IN_FLOAT32
from dagrpo.trainer.model.packed_attention import NAME as PACKED
from dagrpo.trainer.model.packed_attention import is_packed_by_kernel
from dagrpo.trainer.model.policy import WEIGHTS, Policy, token_logprobs
from dagrpo.utils.console import say
from dagrpo.utils.distributed import World

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
MOST_NATS = 1e-3  # by which logprobs of the two layouts may differ in float32
MOST_NATS_CAST = 1.0  # in a type of fewer bits, which rounds the logprob of an unlikely token by tenths
BY_SCALED_DOT_PRODUCTS = ("sdpa", IN_FLOAT32, PACKED)
ATTENTION = {"full_attention", "sliding_attention"}  # kinds of layers


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
    if not world.everywhere((requested or _usual(policy, share_prompts=share_prompts)) == "packed"):
        return "padded"
    expected = _unfit_kind(policy)
    reason = expected or _unfit_class(policy) or _unfit_numbers(policy, world)
    if reason is None:
        return "packed"
    name = policy.model.config.model_type
    if requested is not None:
        raise UserError(
            f"{section}.layout is packed, but this {name} model cannot compute sequences end to end in one row: {reason}; set layout to "
            "padded or null."
        )
    if expected is None and world.is_rank_zero:
        say(f"Sequences of this {name} model are padded, not packed ({section}.layout: null): {reason}.")
    return "padded"


def _usual(policy: Policy, *, share_prompts: bool) -> Layout:
    device, config = policy.model.device, policy.model.config.get_text_config()
    return usual_layout(
        narrow=is_packed_by_kernel(config, policy.dtype, device),
        on_gpu=device.type == "cuda",
        share_prompts=share_prompts,
    )


def _unfit_kind(policy: Policy) -> str | None:
    """Return the reason why a model of this kind is never packed, as in docs/algorithms.md; None if nothing rules it out."""
    model = policy.model
    others = sorted(set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - ATTENTION)
    against = {
        "it takes pictures, for which a row has no place": policy.tower is not None,
        "it carries a state from each token of a row to the next": getattr(model, "_is_stateful", False),
        f"it has layers of another kind than attention to all tokens or a window ({', '.join(others)})": bool(others),
    }
    return next((reason for reason, holds in against.items() if holds), None)


def _unfit_class(policy: Policy) -> str | None:
    """Return the reason why a model class cannot be packed; None if none is visible, so that logprobs are measured.

    A model that supports flash attention passes its window to it, and needs no other mask.
    """
    model = policy.model
    taken = inspect.signature(model.base_model.forward).parameters
    attention = model.config._attn_implementation
    against = {
        "transformers does not support flash attention in it": not getattr(model, "_supports_flash_attn", False),
        f"it attends by `{attention}`, which cannot be replaced": attention not in BY_SCALED_DOT_PRODUCTS,
        "it takes no position ids, which tell where a sequence begins": "position_ids" not in taken,
        "its forward pass forwards no keyword arguments to attention, which needs the sequence boundaries": not any(
            each.kind == each.VAR_KEYWORD for each in taken.values()
        ),
    }
    return next((reason for reason, holds in against.items() if holds), None)


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
    casts = policy.dtype.itemsize < WEIGHTS.itemsize and (
        isinstance(policy, FSDPModule) or policy.model.device.type == "cuda"
    )
    numbers, device = range(len(EXAMPLE)), policy.model.device
    batches: list[MicroBatch] = [EXAMPLE.padded(numbers, 0, device)]
    batches += [EXAMPLE.packed(numbers, device, share_prompts=share) for share in (False, True)]
    padded, *packed = (token_logprobs(policy if casts else policy.__call__, batch, 1.0).logprobs for batch in batches)
    difference = float((padded - torch.stack(packed)).abs().max())
    most, dtype = (MOST_NATS_CAST, policy.dtype) if casts else (MOST_NATS, WEIGHTS)
    if difference <= most:
        return None
    return (
        f"its logprobs differ by up to {difference:.2g} nats from those of padded sequences, and rounding in {_name(dtype)} explains at "
        f"most {most:g}"
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
    numbers, device = range(len(EXAMPLE)), policy.model.device
    one, other = (
        token_logprobs(policy, each.packed(numbers, device, share_prompts=share_prompts), 1.0).logprobs
        for each in (EXAMPLE, OTHER_NEIGHBOUR)
    )
    first, _, last = torch.split(one - other, EXAMPLE.trained)
    return torch.cat([first, last]).abs().max()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
