"""Prepare a policy for section runtime.training: layout, shared prompts, compilation.

What the section leaves open is decided here.
"""

from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.budget import Budget, usual_sharing
from dagrpo.trainer.config.runtime import TrainingRuntime
from dagrpo.trainer.model.compilation import prepare_compilation
from dagrpo.trainer.model.layout import prepare_layout
from dagrpo.trainer.model.policy import Policy
from dagrpo.utils.distributed import World


def resolve_budget(runtime: TrainingRuntime, policy: Policy, world: World) -> Budget:
    """Return the budget with layout, share_prompts and compile filled in, and prepare the policy for it. Every rank calls this.

    Raises UserError if the policy does not support a requested setting.
    """
    requested = runtime.share_prompts
    layout = prepare_layout(policy, runtime.layout, world, share_prompts=bool(requested))
    if requested and layout == "padded":
        raise UserError(
            f"prompts are shared only in packed rows, and the sequences of this {policy.model.config.model_type} model are padded: set "
            "runtime.training.share_prompts to false."
        )
    on_gpu = policy.model.device.type == "cuda"
    share = usual_sharing(layout, on_gpu=on_gpu) if requested is None else requested
    compiled = prepare_compilation(policy, runtime.compile, world, layout)
    return Budget.of(
        runtime, layout, share_prompts=share, on_gpu=on_gpu, linear_head=policy.has_linear_head, compiled=compiled
    )


def prepare(policy: Policy, budget: Budget, world: World) -> None:
    """Prepare a policy for a complete budget, such as that of a recorded step. Every rank calls this.

    Raises UserError if the policy does not support it.
    """
    prepare_layout(policy, budget.layout, world)
    prepare_compilation(policy, budget.compiled, world, budget.layout)
