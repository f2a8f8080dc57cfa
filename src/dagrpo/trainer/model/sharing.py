"""Check that a model supports shared prompts.

runtime.training.share_prompts asks for them: the model reads a prompt from a cache, apart from its continuations.
"""

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import TokenSequences
from dagrpo.trainer.batches.budget import Budget, usual_sharing
from dagrpo.trainer.config.runtime import TrainingRuntime
from dagrpo.trainer.model.compilation import prepare_compilation
from dagrpo.trainer.model.layout import prepare_layout
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.utils.distributed import World

# Two groups whose prompts are of different lengths, so that positions count.
EXAMPLE = TokenSequences.of(
    [[1, 2, 3, 4], [1, 2, 3, 5, 6], [7, 8, 3], [7, 8, 2, 4]],
    [[False, False, False, True], [False, False, False, True, True], [False, False, True], [False, False, True, True]],
)
MOST_NATS = 1e-3  # by which logprobs of the two ways may differ in float32


def resolved(runtime: TrainingRuntime, policy: Policy, world: World) -> Budget:
    """Return the budget with layout, share_prompts and compile filled in, and prepare the policy for it. Every rank calls this.

    Raises UserError if the policy does not support a requested setting.
    """
    requested = runtime.share_prompts
    layout = prepare_layout(policy, runtime.layout, world, share_prompts=bool(requested))
    if requested and layout == "padded":
        require_sharing(policy)
    on_gpu = policy.model.device.type == "cuda"
    share = usual_sharing(layout, on_gpu=on_gpu) if requested is None else requested
    compiled = prepare_compilation(policy, runtime.compile, world, layout, share_prompts=share)
    return Budget.of(
        runtime, layout, share_prompts=share, on_gpu=on_gpu, linear_head=policy.has_linear_head, compiled=compiled
    )


def prepare(policy: Policy, budget: Budget, world: World) -> None:
    """Prepare a policy for a complete budget, such as that of a recorded step. Every rank calls this.

    Raises UserError if the policy does not support it.
    """
    prepare_layout(policy, budget.layout, world)
    if budget.share_prompts and budget.layout == "padded":
        require_sharing(policy)
    prepare_compilation(policy, budget.compiled, world, budget.layout, share_prompts=budget.share_prompts)


@torch.no_grad()
def require_sharing(policy: Policy) -> None:
    """Refuse, before any work, a policy that cannot share prompts among padded sequences. Every rank calls this.

    Raises UserError if it takes pictures, keeps a window of the tokens or a state instead of all of them, if its logprobs differ,
    or if several processes share it.
    """
    # FSDP needs as many forward passes in every rank. A batch takes one where no sequences share a prompt, and two where some do.
    if isinstance(policy, FSDPModule):
        raise UserError(
            "several processes share prompts only in packed rows, and those of this model are padded: set "
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
    if getattr(
        model.config.get_text_config(), "keep_window_size", None
    ):  # Doge: it attends to a choice of the tokens before
        return False
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


def _logprobs_differ(policy: Policy) -> bool:
    """Return True if shared prompts change logprobs. Compared in float32: this call does not cast the weights."""
    alone, shared = (
        token_logprobs(
            policy.__call__, EXAMPLE.padded(range(len(EXAMPLE)), 0, policy.model.device, share_prompts=share), 1.0
        ).logprobs
        for share in (False, True)
    )
    return float((alone - shared).abs().max()) > MOST_NATS
