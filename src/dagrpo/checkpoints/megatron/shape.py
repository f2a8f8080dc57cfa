"""The sizes that a config.json gives to a model, under the names that the family tables use."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import transformers

from dagrpo.checkpoints.folder import CONFIG, require_config
from dagrpo.files import read_json

Dimension = Literal[
    "vocabulary", "hidden", "query", "key", "head", "ffn", "gate_and_up", "experts", "expert_ffn", "expert_gate_and_up"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes in rows or columns. `query` and `key` are heads times the width of a head."""

    layers: int
    vocabulary: int
    hidden: int
    heads: int
    groups: int  # key and value heads: query groups in Megatron's words
    head: int
    ffn: int
    experts: int  # 0: a dense model
    expert_ffn: int
    tied: bool
    attention_bias: bool

    def size(self, dimension: Dimension) -> int:
        derived = {
            "query": self.heads * self.head,
            "key": self.groups * self.head,
            "gate_and_up": 2 * self.ffn,
            "expert_gate_and_up": 2 * self.expert_ffn,
        }
        return derived[dimension] if dimension in derived else int(getattr(self, dimension))

    @property
    def untied(self) -> bool:
        return not self.tied


def architecture(folder: Path) -> str:
    """The class that config.json names. ValueError: it names none."""
    require_config(folder)
    names = read_json(folder / CONFIG).get("architectures")
    if not isinstance(names, list) or not names:
        raise ValueError(
            f"{folder / CONFIG} names no architectures: add the one of the model, such as LlamaForCausalLM."
        )
    return str(names[0])


def load_config(folder: Path) -> Any:
    """config.json with the defaults of its architecture filled in. No code of the checkpoint runs."""
    require_config(folder)
    return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def shape_of(config: Any) -> Shape:
    """The sizes of a transformers config."""
    heads = config.num_attention_heads
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 0
    return Shape(
        layers=config.num_hidden_layers,
        vocabulary=config.vocab_size,
        hidden=config.hidden_size,
        heads=heads,
        groups=getattr(config, "num_key_value_heads", None) or heads,
        head=getattr(config, "head_dim", None) or config.hidden_size // heads,
        ffn=config.intermediate_size,
        experts=experts,
        expert_ffn=getattr(config, "moe_intermediate_size", None) or config.intermediate_size,
        tied=bool(config.tie_word_embeddings),
        attention_bias=bool(getattr(config, "attention_bias", False)),
    )
