"""Adapter of the policy in the form that SGLang serves.

Its tensors are gathered from the ranks that hold parts of them. SGLang joins q_proj, k_proj and v_proj in one layer, and gate_proj
and up_proj in another. Where only some of them have an adapter, the others get one of zeros, which adds 0.
engine/sglang/adapters.py sends it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dagrpo.checkpoints.adapted import adapter_tensors, low_rank_updates, matrices_of
from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.tensors import StateTensors, Tensors
from dagrpo.core.errors import UserError
from dagrpo.engine.sglang.adapters import AdapterForm
from dagrpo.engine.sglang.digests import JOINED
from dagrpo.trainer.lora_config import Lora
from dagrpo.utils.distributed import World

_SERVED = re.compile(r"model\.layers\.\d+\.(self_attn\.[qkvo]|mlp\.(gate|up|down))_proj")
_MERGE = "set training.lora.serving to merged"


def adapter_form(model: PreTrainedModel, lora: Lora) -> AdapterForm:
    """Return the form of the adapter that a server allocates memory for. Raises UserError if SGLang cannot serve it for this model."""
    _require_served(model)
    targets = {layer.rpartition(".")[2] for layer in _layers(model)}
    return AdapterForm(rank=lora.rank, alpha=lora.alpha, target_modules=tuple(sorted(targets)))


def _require_served(model: PreTrainedModel) -> None:
    config = model.config.get_text_config()
    if is_mixture_of_experts(config):
        raise UserError(
            f"training.lora.serving is adapter, but a {config.model_type} model is a mixture of experts, whose adapters SGLang holds "
            f"in another form: {_MERGE}."
        )
    there = {name for name, _ in model.named_modules()}
    for weight in low_rank_updates(model):
        layer = weight.removesuffix(".weight")
        if not _SERVED.fullmatch(layer) or not there.issuperset(_joined_with(layer)):
            raise UserError(
                f"training.lora.serving is adapter, but the adapter changes {layer}, which SGLang is not known to serve in a "
                f"{model.config.model_type} model: leave it out of training.lora.target_modules, or {_MERGE}."
            )


def _layers(model: PreTrainedModel) -> list[str]:
    """Return the layers with an adapter, and those that SGLang joins with them."""
    adapted = [weight.removesuffix(".weight") for weight in low_rank_updates(model)]
    return sorted({other for layer in adapted for other in _joined_with(layer)})


def _joined_with(layer: str) -> list[str]:
    start, _, last = layer.rpartition(".")
    parts = next((parts for parts in JOINED.values() if last in parts), (last,))
    return [f"{start}.{part}" for part in parts]


class GatheredAdapter:
    """Counterpart of GatheredWeights for adapters: every rank takes part, and rank 0 reads the whole adapter in `dtype` at once."""

    def __init__(self, model: PreTrainedModel, rank: int, dtype: torch.dtype, world: World) -> None:
        """Wrap the adapter of `model`. `rank`: the adapter's; not that of a process."""
        self._model = model
        self._rank = rank
        self._dtype = dtype
        self._world = world

    @contextmanager
    def reading(self) -> Iterator[Tensors]:
        """Yield the current adapter on rank 0, while the other ranks run `give_parts`."""
        assert self._world.is_rank_zero
        trained = adapter_tensors(self._model)
        yield StateTensors(
            {name: tensor.to(self._dtype, copy=True) for name, tensor in (self._zeros() | trained).items()}
        )

    def give_parts(self) -> None:
        """Contribute this rank's parts, on every rank but 0."""
        adapter_tensors(self._model)

    def _zeros(self) -> dict[str, Tensor]:
        """Return A and B of every synced layer, all 0."""
        matrices: dict[str, Tensor] = {}
        for layer in _layers(self._model):
            outputs, inputs = self._model.get_submodule(layer).weight.shape
            down, up = matrices_of(layer)
            matrices |= {down: torch.zeros(self._rank, inputs), up: torch.zeros(outputs, self._rank)}
        return matrices
