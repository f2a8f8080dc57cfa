"""Layers of a policy compiled by torch, one graph for all batches."""

import os

from transformers.modeling_layers import GradientCheckpointingLayer

from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.trainer.config.runtime import Layout
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.model.vision_tower import tower_module
from dagrpo.utils.kernel_caches import torch_caches

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


def why_not_compiled(policy: Policy, layout: Layout, *, share_prompts: bool) -> str | None:
    """Return the reason why the layers of this policy stay uncompiled in this layout; None if nothing rules compilation out."""
    model, packed = policy.model, layout == "packed"
    reasons = {
        "it is a mixture of experts, whose tokens are routed by their values": is_mixture_of_experts(model.config),
        "padded sequences share prompts through a cache": share_prompts and not packed,
        "packed rows on a CPU are attended to by their lengths": packed and model.device.type == "cpu",
        "transformers does not mark its layers": not layers_of(policy),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
