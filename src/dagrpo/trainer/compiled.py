"""Layers of a policy compiled by torch, one graph for all batches."""

from torch.distributed.fsdp import FSDPModule
from transformers.modeling_layers import GradientCheckpointingLayer

from dagrpo.checkpoints.adapted import low_rank_updates
from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.params.runtime import Layout
from dagrpo.trainer.policy import Policy

# Graphs of a layer at most: with gradients and without, of one sequence and of several, with shared prompts and without.
MOST_GRAPHS = 16
# Kernels are not chosen by their measured times, which differ from process to process: the same graph gives the same bits.
REPEATABLE: dict[str, str | int | bool] = {"deterministic": True, "max_autotune": False}


def compile_layers(policy: Policy, backend: str = "inductor") -> None:
    """Have torch compile each layer of a policy when it is first computed, whole, for batches of any lengths.

    Activations that are computed again in the backward pass are part of the graph, if `checkpoint_activations` came before.
    """
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
    """Return the layers that are compiled, each by itself."""
    return [module for module in policy.model.modules() if isinstance(module, GradientCheckpointingLayer)]


def why_not_compiled(policy: Policy, layout: Layout, *, share_prompts: bool) -> str | None:
    """Return the reason for which the layers of this policy stay uncompiled in this layout; None: nothing rules it out."""
    model, packed = policy.model, layout == "packed"
    config = model.config.get_text_config()
    has_windows = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    reasons = {
        "several processes share it, and compiled layers that are sharded were never tried": isinstance(
            policy, FSDPModule
        ),
        "it has an adapter, beside which layers needed more than one graph": bool(low_rank_updates(model)),
        "it takes pictures": policy.tower is not None,
        "it is a mixture of experts, whose tokens are routed by their values": is_mixture_of_experts(model.config),
        "layers that attend to a window read its size from a tensor in packed rows": packed and has_windows,
        "padded sequences share prompts through a cache": share_prompts and not packed,
        "packed rows on a CPU are attended to by their lengths": packed and model.device.type == "cpu",
        "transformers does not mark its layers": not layers_of(policy),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
