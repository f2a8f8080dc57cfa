"""Size of a model, counted on torch's meta device."""

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

Vision = Literal["frozen", "trained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Number of weights, and of trained ones."""

    weights: int  # of the model itself, tied ones counted once, without an adapter
    adapter: int  # of a LoRA adapter; all of them are trained
    trained: int  # those that have a gradient, an adapter's included
    whole: int  # of `weights`, those that are not shared: every process has the whole of a frozen tower


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size of a model for a plan: of any family, experts and vision towers included."""

    model: PreTrainedModel  # on the meta device, so without values
    weights: int
    block: int  # weights of the largest block, which FSDP gathers as one
    outside: int  # weights outside the blocks: embeddings, head, norms
    arithmetic: Arithmetic

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Self:
        """Return the shape of the model that a config describes. Raises UserError if transformers does not know it."""
        with torch.device("meta"):
            model: PreTrainedModel = model_class_of(config)._from_config(config, dtype=torch.float32)
        model.tie_weights()
        weights = sum(weight.numel() for weight in model.parameters())
        names = model._no_split_modules or ()  # as trainer/model/fsdp.py finds the blocks
        blocks = [
            sum(weight.numel() for weight in module.parameters())
            for module in model.modules()
            if type(module).__name__ in names
        ]
        return cls(
            model=model,
            weights=weights,
            block=max(blocks, default=0),
            outside=weights - sum(blocks),
            arithmetic=Arithmetic.of(model),
        )

    @property
    def text(self) -> Any:
        """The config of the language model."""
        return self.model.config.get_text_config()

    @property
    def vision(self) -> Any:
        """The config of the vision tower; None: the model takes no pictures."""
        return None if tower_module(self.model) is None else self.model.config.vision_config

    @property
    def positions(self) -> int:
        """The tokens of the longest context."""
        return int(getattr(self.text, "max_position_embeddings", None) or 1 << 30)

    @property
    def key_value_heads(self) -> int:
        """The number of heads with a key and a value, in each layer."""
        return int(getattr(self.text, "num_key_value_heads", None) or self.text.num_attention_heads)

    @property
    def cached_per_token(self) -> int:
        """The elements of the key-value cache per token: a key and a value per layer. Too many if some layers have no cache."""
        size = getattr(self.text, "head_dim", None) or self.text.hidden_size // self.text.num_attention_heads
        return int(2 * self.text.num_hidden_layers * self.key_value_heads * size)

    @property
    def keys(self) -> int:
        """The numbers of a token's keys in a layer; it has as many values."""
        return self.cached_per_token // (2 * int(self.text.num_hidden_layers))

    @property
    def queries(self) -> int:
        """The numbers of a token's queries in a layer."""
        return self.keys // self.key_value_heads * int(self.text.num_attention_heads)

    @property
    def norms_queries(self) -> bool:
        """Return True if queries and keys are normalised, as in Qwen3."""
        return any(name.endswith("q_norm.weight") for name, _ in self.model.named_parameters())

    @property
    def mlp_width(self) -> int:
        """The width of a layer's MLP; with experts, of all that a token is sent to, added up."""
        if not is_mixture_of_experts(self.text):
            return int(self.text.intermediate_size)
        each = getattr(self.text, "moe_intermediate_size", None) or self.text.intermediate_size
        return int(each * self.text.num_experts_per_tok)

    def trained(self, lora: Lora, vision: Vision) -> Trained:
        """Return the numbers of weights, all and trained. Raises UserError if the adapter names no layer."""
        tower = tower_module(self.model)
        frozen = sum(weight.numel() for weight in tower.parameters()) if tower is not None and vision == "frozen" else 0
        if not lora.is_on:
            return Trained(weights=self.weights, adapter=0, trained=self.weights - frozen, whole=frozen)
        layers = [self.model.get_submodule(name).weight for name in adapted_layers(self.model, lora)]
        adapter = lora.rank * sum(sum(weight.shape) for weight in layers)
        return Trained(weights=self.weights, adapter=adapter, trained=adapter, whole=frozen)

    def synced_numbers(self, lora: TrainedLora, vision: Vision) -> int:
        """Return the numbers of a weight sync. Raises UserError if the adapter names no layer."""
        return self.weights if lora.serving == "merged" else self.trained(lora, vision).adapter
