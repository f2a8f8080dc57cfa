"""Whether a model can read a prompt from a cache, and what follows it apart, as `runtime.training.share_prompts` asks for."""

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from dagrpo.errors import UserError
from dagrpo.trainer.packing import TokenSequences
from dagrpo.trainer.policy import WEIGHTS, Policy, token_logprobs

# Two groups whose prompts are of different lengths, so that positions count.
EXAMPLE = TokenSequences.of(
    [[1, 2, 3, 4], [1, 2, 3, 5, 6], [7, 8, 3], [7, 8, 2, 4]],
    [[False, False, False, True], [False, False, False, True, True], [False, False, True], [False, False, True, True]],
)
MOST_NATS = 1e-3  # by which logprobs of the two ways may differ in float32
MOST_NATS_CAST = 1.0  # in a type of fewer bits, which rounds the logprob of an unlikely token by tenths


@torch.no_grad()
def require_sharing(policy: Policy) -> None:
    """Refuse, before any work, a model that would compute other logprobs so. Every rank calls this.

    UserError: it takes pictures, keeps a window of the tokens or a state instead of all of them, or its logprobs differ.
    """
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
    """Compared in float32: this call does not cast the weights. FSDP casts them in any case, where the policy is sharded."""
    alone, shared = (
        token_logprobs(
            policy.__call__, EXAMPLE.padded(range(len(EXAMPLE)), 0, policy.model.device, share_prompts=share), 1.0
        ).logprobs
        for share in (False, True)
    )
    casts = policy.dtype.itemsize < WEIGHTS.itemsize and isinstance(policy, FSDPModule)
    most = MOST_NATS_CAST if casts else MOST_NATS
    return float((alone - shared).abs().max()) > most
