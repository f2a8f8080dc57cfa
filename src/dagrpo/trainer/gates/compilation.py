"""Whether torch compiles the layers of a policy, as `runtime.training.compile` asks for."""

import torch
from torch._dynamo.exc import TorchDynamoException

from dagrpo.console import say
from dagrpo.distributed import World
from dagrpo.errors import UserError
from dagrpo.params.runtime import Layout
from dagrpo.trainer.compiled import compile_layers, forget_compiled, why_not_compiled
from dagrpo.trainer.gates.layout import EXAMPLE, MOST_NATS, MOST_NATS_CAST
from dagrpo.trainer.policy import WEIGHTS, Policy, token_logprobs


def prepare_compilation(
    policy: Policy, asked: bool | None, world: World, layout: Layout, *, share_prompts: bool, backend: str = "inductor"
) -> bool:
    """Return whether the layers are compiled from now on. The policy has been prepared for the layout.

    `asked`: runtime.training.compile. None: on a GPU without deterministic algorithms, where the model and the machine can; where they
    cannot, rank 0 says why. UserError: it is asked for, and they cannot.
    """
    forget_compiled(policy)
    usual = policy.model.device.type == "cuda" and not torch.are_deterministic_algorithms_enabled()
    if not (usual if asked is None else asked):
        return False
    reason = why_not_compiled(policy, layout, share_prompts=share_prompts) or _fault(policy, layout, backend)
    if reason is None:
        return True
    name = policy.model.config.model_type
    if asked:
        raise UserError(
            f"runtime.training.compile is true, but the layers of this {name} model cannot be compiled: {reason}; set it to false or null."
        )
    if world.is_rank_zero:
        say(f"The layers of this {name} model are not compiled (runtime.training.compile: null): {reason}.")
    return False


def _fault(policy: Policy, layout: Layout, backend: str) -> str | None:
    """Compile the layers and compute a few tokens and their gradients; return what speaks against it, or None."""
    batch = EXAMPLE.laid_out(range(len(EXAMPLE)), 0, policy.model.device, layout)
    with torch.no_grad():
        uncompiled = token_logprobs(policy, batch, 1.0).logprobs
    compile_layers(policy, backend)
    try:
        with torch.enable_grad():
            logprobs = token_logprobs(policy, batch, 1.0).logprobs
        torch.autograd.grad(
            logprobs.sum(), [each for each in policy.parameters() if each.requires_grad], allow_unused=True
        )
    except TorchDynamoException as error:
        forget_compiled(policy)
        return f"torch says `{str(error).strip().partition(chr(10))[0]}`"
    difference = float((logprobs.detach() - uncompiled).abs().max())
    if difference <= (MOST_NATS if policy.dtype == WEIGHTS else MOST_NATS_CAST):
        return None
    forget_compiled(policy)
    return f"logprobs differ by {difference:.1e} from those of layers that are not"
