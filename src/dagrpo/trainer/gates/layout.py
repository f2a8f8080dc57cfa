"""Whether a policy's micro-batches are padded or packed, as `layout` asks for (runtime.training, runtime.sft).

A packed row is for models in which nothing but attention brings the tokens of a sequence together, and that are told by position ids
where it begins. Whether a model is one is measured, where its class and configuration do not rule it out.
"""

import inspect

import torch
from torch.distributed.fsdp import FSDPModule

from dagrpo.errors import UserError
from dagrpo.params.runtime import Layout
from dagrpo.trainer.attention import NAME as IN_FLOAT32
from dagrpo.trainer.budget import usual_layout
from dagrpo.trainer.packed_attention import NAME as PACKED
from dagrpo.trainer.packed_attention import has_kernels
from dagrpo.trainer.packing import Batch, TokenSequences
from dagrpo.trainer.policy import WEIGHTS, Policy, Reference, token_logprobs
from dagrpo.trainer.throughput import EXPERTS

# Three sequences of two lengths, two of which share a prompt.
EXAMPLE = TokenSequences.of(
    [[1, 2, 3, 4, 5, 6], [7, 8, 3], [1, 2, 3, 6, 7, 2]],
    [[False, False, False, True, True, True], [False, True, True], [False, False, False, True, True, True]],
)
# The same, but for the second, which is the shortest and so the first of a row.
OTHER_NEIGHBOUR = TokenSequences.of(
    [[1, 2, 3, 4, 5, 6], [5, 2, 8], [1, 2, 3, 6, 7, 2]],
    [[False, False, False, True, True, True], [False, True, True], [False, False, False, True, True, True]],
)
MOST_NATS = 1e-3  # by which logprobs of the two layouts may differ in float32
MOST_NATS_CAST = 1.0  # in a type of fewer bits, which rounds the logprob of an unlikely token by tenths
BY_SCALED_DOT_PRODUCTS = ("sdpa", IN_FLOAT32, PACKED)
ATTENTION = {"full_attention", "sliding_attention"}  # kinds of layers


@torch.no_grad()
def layout_of(
    policy: Policy,
    reference: Reference | None,
    asked: Layout | None,
    *,
    share_prompts: bool = False,
    section: str = "runtime.training",
) -> Layout:
    """The layout to compute in; packed, policy and reference are prepared for it. Every rank calls this.

    `asked`: the key `layout` of `section`. None: packed where that is faster and the model allows it. UserError: packed is asked for, and
    the model does not allow it.
    """
    device = policy.model.device
    narrow = policy.dtype != WEIGHTS and (device.type == "cpu" or has_kernels(device))
    usual = usual_layout(narrow=narrow, on_gpu=device.type == "cuda", share_prompts=share_prompts)
    wanted = asked or usual
    if wanted == "padded":
        return "padded"
    reason = _unfit(policy)
    if reason is None:
        before = policy.model.config._attn_implementation
        policy.take_packed()
        reason = _difference(policy) or _leak(policy)
        if isinstance(policy, FSDPModule):
            policy.reshard()  # an optimizer takes the parameters as they are now
        if reason is None:
            if reference is not None:
                reference.take_packed()
            return "packed"
        policy.model.set_attn_implementation(before)
    if asked is None:
        return "padded"
    raise UserError(
        f"{section}.layout is packed, but this {policy.model.config.model_type} model cannot compute sequences end to end in one row: "
        f"{reason}; set layout to padded or null."
    )


def _unfit(policy: Policy) -> str | None:
    """Why the model cannot be packed, as far as its class and configuration show; None: nothing shows, so that logprobs are measured.

    A model that supports flash attention hands its window to it, and needs no other mask.
    """
    model = policy.model
    config = model.config.get_text_config()
    taken = inspect.signature(model.base_model.forward).parameters
    others = sorted(set(getattr(config, "layer_types", None) or ()) - ATTENTION)
    attention = model.config._attn_implementation
    against = {
        "it takes pictures, for which a row has no place": policy.tower is not None,
        "it carries a state from each token of a row to the next": getattr(model, "_is_stateful", False),
        "transformers does not support flash attention in it": not getattr(model, "_supports_flash_attn", False),
        f"it has layers of another kind than attention to all tokens or a window ({', '.join(others)})": bool(others),
        f"it attends by `{attention}`, which cannot be replaced": attention not in BY_SCALED_DOT_PRODUCTS,
        "it takes no position ids, which tell where a sequence begins": "position_ids" not in taken,
        "it hands nothing on to its attention, which has to know where sequences end": not any(
            each.kind == each.VAR_KEYWORD for each in taken.values()
        ),
    }
    return next((reason for reason, holds in against.items() if holds), None)


def _difference(policy: Policy) -> str | None:
    """By how much its logprobs differ from those of padded sequences, if that is more than rounding.

    On a CPU without a cast of the weights, so in float32. FSDP casts them in any case, and kernels for 16 bits need it.
    """
    casts = policy.dtype.itemsize < WEIGHTS.itemsize and (
        isinstance(policy, FSDPModule) or policy.model.device.type == "cuda"
    )
    numbers, device = range(len(EXAMPLE)), policy.model.device
    batches: list[Batch] = [EXAMPLE.padded(numbers, 0, device)]
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
    """By how much the others' logprobs change when one sequence of a row says something else, if a bit of them does.

    A mixture of experts is left out: how many tokens an expert is given decides how its products are rounded.
    """
    config = policy.model.config.get_text_config()
    if any(getattr(config, name, None) for name in EXPERTS):
        return None
    for share in (False, True):
        one, other = (
            token_logprobs(
                policy, each.packed(range(len(each)), policy.model.device, share_prompts=share), 1.0
            ).logprobs
            for each in (EXAMPLE, OTHER_NEIGHBOUR)
        )
        first, _, last = torch.split(one, EXAMPLE.trained)
        first_beside, _, last_beside = torch.split(other, EXAMPLE.trained)
        if not (torch.equal(first, first_beside) and torch.equal(last, last_beside)):
            apart = max(float((one - other).abs().max()) for one, other in ((first, first_beside), (last, last_beside)))
            return (
                f"the logprobs of a sequence change by up to {apart:.2g} nats with what another one in its row says, and not a bit of "
                "them may"
            )
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
