"""Recomputation: the backward pass computes each layer again.

A layer keeps only its inputs (Chen et al. 2016, arXiv 1604.06174; torch's checkpoint without reentrance). transformers' own
switch works only in train mode, where dropout is on, and it would read the float32 weights again where a forward pass had cast
them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.core.errors import UserError


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Recompute each layer of a model, and of its vision tower, in the backward pass.

    The bits of values and gradients stay. The model must not keep keys and values (`use_cache`): they would be kept twice.
    Raises UserError if transformers supports recomputation of no layer of the model's family.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(
            f"{type(model).__name__} ({model.config.model_type}) has no layers that could be computed again: set "
            "activation_checkpointing to false (runtime.training, runtime.sft)."
        )
    for layer in layers:
        layer.forward = partial(_recomputed, _OwnForward(layer))


class _OwnForward(torch.nn.Module):
    """Forward method of a layer's class, which `checkpoint_activations` has replaced in the layer itself."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return type(self.layer).forward(self.layer, *inputs, **options)


def _recomputed(layer: _OwnForward, /, *inputs: Any, **options: Any) -> Any:
    """Compute the layer, now and again in the backward pass.

    By then the cast weights that `functional_call` had put in the place of the layer's weights are gone, so they are passed along.
    """
    if not torch.is_grad_enabled():
        return layer(*inputs, **options)
    cast = {name: each for name, each in layer.named_parameters() if not isinstance(each, torch.nn.Parameter)}
    compute = partial(_with_weights, layer, cast) if cast else layer
    return checkpoint(compute, *inputs, use_reentrant=False, preserve_rng_state=False, **options)


def _with_weights(layer: _OwnForward, weights: Mapping[str, torch.Tensor], /, *inputs: Any, **options: Any) -> Any:
    return functional_call(layer, dict(weights), inputs, options)
