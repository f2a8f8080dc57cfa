"""Whether torch compiles the layers of a policy, as `runtime.training.compile` asks for."""

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from dagrpo.console import say
from dagrpo.distributed import World
from dagrpo.errors import UserError
from dagrpo.params.runtime import Layout
from dagrpo.trainer.compiled import compile_layers, forget_compiled, why_not_compiled
from dagrpo.trainer.gates.layout import EXAMPLE, MOST_NATS, MOST_NATS_CAST
from dagrpo.trainer.packing import Batch
from dagrpo.trainer.policy import WEIGHTS, Policy, token_logprobs

# Of the norm of a gradient, in float32 and in a type of fewer bits: more than rounding changes.
MOST_GRADIENT, MOST_GRADIENT_CAST = 1e-3, 0.1


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
    known, known_gradient = _computed(policy, batch)
    compile_layers(policy, backend)
    try:
        logprobs, gradient = _computed(policy, batch)
    except TorchDynamoException as error:
        forget_compiled(policy)
        return f"torch says `{str(error).strip().partition(chr(10))[0]}`"
    nats, share = (MOST_NATS, MOST_GRADIENT) if policy.dtype == WEIGHTS else (MOST_NATS_CAST, MOST_GRADIENT_CAST)
    difference, of_gradient = (
        float((logprobs - known).abs().max()),
        float((gradient - known_gradient).norm() / known_gradient.norm()),
    )
    if difference <= nats and of_gradient <= share:
        return None
    forget_compiled(policy)
    return f"logprobs differ by {difference:.1e} and the gradient by {of_gradient:.1e} of its norm from those of uncompiled layers"


def _computed(policy: Policy, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the logprobs of a batch, [tokens], and the gradient of their sum, [numbers that are trained]."""
    with torch.enable_grad():
        logprobs = token_logprobs(policy, batch, 1.0).logprobs
    trained = [each for each in policy.parameters() if each.requires_grad]
    gradients = torch.autograd.grad(logprobs.sum(), trained, allow_unused=True, materialize_grads=True)
    return logprobs.detach(), torch.cat([each.flatten() for each in gradients])
