"""Adapter of the policy in the form that the engine serves.

Its tensors are gathered from the ranks that hold parts of them. An engine may compute several layers as one, as q_proj, k_proj and
v_proj. If only some of them have an adapter, the others get one of zeros, which adds 0.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.checkpoints.lora_layers import adapter_tensors, low_rank_updates, matrices_of
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.tensors import StateTensors, Tensors
from dagrpo.core.errors import UserError
from dagrpo.engine import AdapterLayers
from dagrpo.engine.interface import AdapterForm
from dagrpo.trainer.config.lora import Lora
from dagrpo.utils.distributed import World

_MERGE = "set training.lora.serving to merged"


def adapter_form(model: PreTrainedModel, lora: Lora, able: AdapterLayers) -> AdapterForm:
    """Return the form of the adapter that an engine allocates memory for. Raises UserError if it cannot serve it for this model."""
    _require_served(model, able)
    targets = {layer.rpartition(".")[2] for layer in _layers(model, able)}
    return AdapterForm(rank=lora.rank, alpha=lora.alpha, target_modules=tuple(sorted(targets)))


def _require_served(model: PreTrainedModel, able: AdapterLayers) -> None:
    config = model.config.get_text_config()
    if is_mixture_of_experts(config):
        raise UserError(
            f"training.lora.serving is adapter, but a {config.model_type} model is a mixture of experts, whose adapters engines hold "
            f"in another form: {_MERGE}."
        )
    there = {name for name, _ in model.named_modules()}
    for weight in low_rank_updates(model):
        layer = weight.removesuffix(".weight")
        if not able.served.fullmatch(layer) or not there.issuperset(_joined_with(layer, able)):
            raise UserError(
                f"training.lora.serving is adapter, but the adapter changes {layer}, which the engine is not known to serve in a "
                f"{model.config.model_type} model: leave it out of training.lora.target_modules, or {_MERGE}."
            )


def _layers(model: PreTrainedModel, able: AdapterLayers) -> list[str]:
    """Return the layers with an adapter, and those that the engine joins with them."""
    adapted = [weight.removesuffix(".weight") for weight in low_rank_updates(model)]
    return sorted({other for layer in adapted for other in _joined_with(layer, able)})


def _joined_with(layer: str, able: AdapterLayers) -> list[str]:
    start, _, last = layer.rpartition(".")
    parts = next((parts for parts in able.joined if last in parts), (last,))
    return [f"{start}.{part}" for part in parts]


class GatheredAdapter:
    """Counterpart of GatheredWeights for adapters: every rank takes part, and rank 0 reads the whole adapter in `dtype` at once."""

    def __init__(
        self, model: PreTrainedModel, rank: int, dtype: torch.dtype, world: World, able: AdapterLayers
    ) -> None:
        """Wrap the adapter of `model`. `rank`: the adapter's; not that of a process. `able`: the engine's layers."""
        self._model = model
        self._able = able
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
        for layer in _layers(self._model, self._able):
            outputs, inputs = self._model.get_submodule(layer).weight.shape
            down, up = matrices_of(layer)
            matrices |= {down: torch.zeros(self._rank, inputs), up: torch.zeros(outputs, self._rank)}
        return matrices
