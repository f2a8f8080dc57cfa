"""Size of a model: weights, and widths of activations and cache.

Counted on the model that transformers builds from its config, on torch's meta device, where tensors have a shape and take no memory. So the
numbers are right for every family, experts and vision towers included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch

from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.checkpoints.modelling import PreTrainedConfig, PreTrainedModel
from dagrpo.checkpoints.modules import model_class_of
from dagrpo.trainer.config.lora import Lora, TrainedLora
from dagrpo.trainer.metrics.throughput import Arithmetic
from dagrpo.trainer.model.lora import adapted_layers
from dagrpo.trainer.model.vision_tower import tower_module


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Layers of one width: of the language model, or of its vision tower."""

    layers: int
    width: int  # of the residual stream
    keys: int  # their heads times the size of a head; values are as wide
    inner: int  # width of the MLP; with experts, of all that a token is sent to, added up


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Patches of a vision tower, and its layers."""

    patch_size: int  # pixels a side
    stack: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Number of weights, and of trained ones."""

    weights: int  # of the model itself, tied ones counted once, without an adapter
    adapter: int  # of a LoRA adapter; all of them are trained
    trained: int  # those that have a gradient, an adapter's included
    whole: int  # of `weights`, those that are not shared: every process has the whole of a frozen tower


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size of a model for a plan."""

    model: PreTrainedModel  # on the meta device, so without values
    weights: int
    block: int  # weights of the largest block, which FSDP gathers as one
    outside: int  # weights outside the blocks: embeddings, head, norms
    vocabulary: int
    positions: int  # the longest context
    text: Stack
    pictures: Pictures | None  # None: the model takes none
    arithmetic: Arithmetic

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Self:
        """Return the shape of the model that a config describes. Raises UserError if transformers does not know it."""
        with torch.device("meta"):
            model: PreTrainedModel = model_class_of(config)._from_config(config, dtype=torch.float32)
        model.tie_weights()
        sizes = [weight.numel() for weight in model.parameters()]
        blocks = _blocks(model)
        text = config.get_text_config()
        return cls(
            model=model,
            weights=sum(sizes),
            block=max(blocks, default=0),
            outside=sum(sizes) - sum(blocks),
            vocabulary=text.vocab_size,
            positions=int(getattr(text, "max_position_embeddings", None) or 1 << 30),
            text=_stack_of_text(text, model),
            pictures=_pictures(model),
            arithmetic=Arithmetic.of(model),
        )

    @property
    def cached_per_token(self) -> int:
        """The elements of the key-value cache per token: a key and a value per layer. Too many if some layers have no cache."""
        return 2 * self.text.layers * self.text.keys

    def trained(self, lora: Lora, vision: Literal["frozen", "trained"]) -> Trained:
        """Return the numbers of weights, all and trained. Raises UserError if the adapter names no layer."""
        tower = self._tower_weights
        frozen = tower if vision == "frozen" else 0
        if not lora.is_on:
            return Trained(weights=self.weights, adapter=0, trained=self.weights - frozen, whole=frozen)
        adapter = lora.rank * sum(self._sides(adapted_layers(self.model, lora)))
        return Trained(weights=self.weights, adapter=adapter, trained=adapter, whole=frozen)

    def synced_numbers(self, lora: TrainedLora, vision: Literal["frozen", "trained"]) -> int:
        """Return the numbers of a weight sync. Raises UserError if the adapter names no layer."""
        return self.weights if lora.serving == "merged" else self.trained(lora, vision).adapter

    @property
    def _tower_weights(self) -> int:
        tower = tower_module(self.model)
        return 0 if tower is None else sum(weight.numel() for weight in tower.parameters())

    def _sides(self, names: Sequence[str]) -> list[int]:
        """Return the sum of the inputs and outputs of each linear layer."""
        weights = [self.model.get_submodule(name).weight for name in names]
        return [sum(weight.shape) for weight in weights]


def _stack_of_text(text: Any, model: PreTrainedModel) -> Stack:
    heads = getattr(text, "num_attention_heads", None) or 0
    size = getattr(text, "head_dim", None) or (text.hidden_size // heads if heads else 0)
    of_keys = getattr(text, "num_key_value_heads", None) or heads
    return Stack(
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        keys=of_keys * size,
        inner=_inner(text),
    )


def _inner(text: Any) -> int:
    if not is_mixture_of_experts(text):
        return int(text.intermediate_size)
    each = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
    return int(each * text.num_experts_per_tok)


def _pictures(model: PreTrainedModel) -> Pictures | None:
    if tower_module(model) is None:
        return None
    vision: Any = model.config.vision_config
    width = vision.hidden_size
    stack = Stack(layers=vision.depth, width=width, keys=width, inner=vision.intermediate_size)
    return Pictures(patch_size=vision.patch_size, stack=stack)


def _blocks(model: PreTrainedModel) -> list[int]:
    """Return the weights of each block, as trainer/model/fsdp.py finds them."""
    names = model._no_split_modules or ()
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    return [sum(weight.numel() for weight in module.parameters()) for module in blocks]
