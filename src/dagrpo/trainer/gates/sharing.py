"""Whether a model can read a prompt from a cache, and what follows it apart, as `runtime.training.share_prompts` asks for."""

from dataclasses import replace

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from dagrpo.errors import UserError
from dagrpo.trainer.budget import Budget, usual_sharing
from dagrpo.trainer.gates.layout import layout_of
from dagrpo.trainer.packing import TokenSequences
from dagrpo.trainer.policy import Policy, Reference, token_logprobs

# Two groups whose prompts are of different lengths, so that positions count.
EXAMPLE = TokenSequences.of(
    [[1, 2, 3, 4], [1, 2, 3, 5, 6], [7, 8, 3], [7, 8, 2, 4]],
    [[False, False, False, True], [False, False, False, True, True], [False, False, True], [False, False, True, True]],
)
MOST_NATS = 1e-3  # by which logprobs of the two ways may differ in float32


def decided(budget: Budget, policy: Policy, reference: Reference | None) -> Budget:
    """The same with a layout, and with whether prompts are shared. Every rank calls this.

    UserError: the policy cannot compute as it was asked to.
    """
    layout = layout_of(policy, reference, budget.layout, share_prompts=bool(budget.share_prompts))
    share = budget.share_prompts
    if share is None:
        share = usual_sharing(layout, on_gpu=policy.model.device.type == "cuda")
    elif share and layout == "padded":
        require_sharing(policy)
    return replace(budget, layout=layout, share_prompts=share)


@torch.no_grad()
def require_sharing(policy: Policy) -> None:
    """Refuse, before any work, a policy that cannot share prompts among padded sequences. Every rank calls this.

    UserError: it takes pictures, keeps a window of the tokens or a state instead of all of them, its logprobs differ, or several
    processes share it.
    """
    # FSDP needs as many forward passes in every rank, and one whose sequences share no prompt would take one where others take two.
    if isinstance(policy, FSDPModule):
        raise UserError(
            "with several processes prompts are shared in packed rows alone: set runtime.training.layout to packed, or "
            "runtime.training.share_prompts to false."
        )
    if _keeps_every_token(policy) and not _logprobs_differ(policy):
        return
    raise UserError(
        f"a {policy.model.config.model_type} model cannot compute a prompt once for all of its samples (it takes pictures, or "
        "some of its layers do not attend to all tokens before): set runtime.training.share_prompts to false."
    )


def _keeps_every_token(policy: Policy) -> bool:
    model = policy.model
    if policy.tower is not None or getattr(model, "_is_stateful", False):
        return False
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


def _logprobs_differ(policy: Policy) -> bool:
    """Compared in float32: this call does not cast the weights."""
    alone, shared = (
        token_logprobs(
            policy.__call__, EXAMPLE.padded(range(len(EXAMPLE)), 0, policy.model.device, share_prompts=share), 1.0
        ).logprobs
        for share in (False, True)
    )
    return float((alone - shared).abs().max()) > MOST_NATS
