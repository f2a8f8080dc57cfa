"""LoRA adapter in the policy's linear layers: the only trained weights.

PEFT adds it. The layers compute W x + s B (A x), so that the model's own weights need neither a gradient nor optimizer state.
checkpoints/lora_layers.py exports the sum W + s B A.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dagrpo.checkpoints.lora_layers import NAME, low_rank_updates
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.checkpoints.sharded import fill
from dagrpo.core.errors import UserError, nearest_of
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.trainer.batches.batch import MicroBatch
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.model.head import PLAIN, Extras, Read
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.model.vision_tower import tower_module


def add_adapter(model: PreTrainedModel, lora: Lora) -> None:
    """Freeze the model's weights and put an adapter beside them, whose values `begin` sets.

    Raises UserError if a target names no linear layer of the trained model.
    """
    import peft  # takes more than a second, and most runs have no adapter

    names = adapted_layers(model, lora)
    model.requires_grad_(False)
    config = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=names)
    peft.inject_adapter_in_model(config, model, NAME)
    model.eval()
    added = {name.removesuffix(".weight") for name in low_rank_updates(model)}
    assert added == set(names), "each target is one layer's whole name"


@torch.no_grad()
def begin(model: PreTrainedModel, seed: int) -> None:
    """Set A at random and B to 0, so that the model equals its base: the same values on any number of ranks. Every rank calls this.

    A is uniform within 1 / sqrt(inputs) of 0, as PEFT and the authors sample it (Kaiming, with a = sqrt(5)).
    """
    for name, update in low_rank_updates(model).items():
        generator = torch.Generator().manual_seed(sampling_seed(seed, "lora", name))
        shape, bound = tuple(update.down.shape), 1 / math.sqrt(update.down.shape[1])
        fill(update.down.detach(), (2 * torch.rand(shape, generator=generator) - 1) * bound)
        fill(update.up.detach(), torch.zeros(tuple(update.up.shape)))


class WithoutAdapter:
    """Policy before its adapter was trained: computes with the same weights, without a second copy of them."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __call__(
        self, batch: MicroBatch, temperature: float, extras: Extras = PLAIN, head_chunk_tokens: int | None = None
    ) -> Read:
        """Compute the policy's outputs without its adapter."""
        with _left_out(self._policy):
            return self._policy.computed(batch, temperature, extras, head_chunk_tokens)

    def take_packed(self) -> None:
        """Do nothing: the model is the policy's, which is prepared for packed rows itself."""

    def forget_pictures(self) -> None:
        """Do nothing: the policy frees its own pictures."""


@contextmanager
def _left_out(policy: Policy) -> Iterator[None]:
    """Disable the adapter in the forward pass only: PEFT's own switch also freezes it, while its gradient may still be needed."""
    layers: list[Any] = [module for module in policy.model.modules() if hasattr(module, "lora_A")]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def adapted_layers(model: PreTrainedModel, lora: Lora) -> list[str]:
    """Return the full names of the layers that get an adapter. Raises UserError if a target names no layer."""
    candidates = _linear_layers(model, with_tower=lora.vision)
    if lora.target_modules is None and candidates:
        return candidates
    chosen: set[str] = set()
    for target in lora.target_modules or ["any"]:
        named = {name for name in candidates if f".{name}".endswith(f".{target}")}
        if not named:
            raise UserError(_names_nothing(model, target, candidates))
        chosen |= named
    return sorted(chosen)


def _linear_layers(model: PreTrainedModel, *, with_tower: bool) -> list[str]:
    """Return the names of the language model's linear layers without the head; with `with_tower`, also of the vision tower's."""
    tower = tower_module(model)
    left_out = {model.get_output_embeddings(), *(tower.modules() if tower is not None and not with_tower else ())}
    return [
        name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module not in left_out
    ]


def _names_nothing(model: PreTrainedModel, target: str, candidates: list[str]) -> str:
    known = sorted({name.rpartition(".")[2] for name in candidates})
    kind = model.config.model_type
    if not known:
        return f"A {kind} model has no linear layers that an adapter could be in: set lora.rank to 0, or choose another model."
    near = nearest_of(target, known, cutoff=0.6)
    hint = f"the nearest is {near}" if near else f"it has {', '.join(known)}"
    return (
        f"lora.target_modules names {target}, which is no linear layer of this {kind} model that may have one: {hint}."
    )
