"""Model sizes from config.json, under the family tables' names.

It is read as plain JSON: transformers' own reader takes two seconds and 120 MB to import. A missing key has
the default of its architecture in transformers, which the tables repeat and a test compares.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.checkpoints.folder import CONFIG, require_config
from dagrpo.core.errors import UserError
from dagrpo.utils.files import read_object
from dagrpo_megatron.families import Dimension, Family, family_of

_REQUIRED = (
    "num_hidden_layers",
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


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
        }
        return derived[dimension] if dimension in derived else int(getattr(self, dimension))

    @property
    def untied(self) -> bool:
        return not self.tied


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Contents of a config.json with the defaults of its family. `rope` holds transformers' rope_parameters."""

    family: Family
    shape: Shape
    values: dict[str, Any]
    rope: dict[str, Any]


def load_config(folder: Path) -> ModelConfig:
    """Read the config.json of a folder. Raises UserError if the architecture has no table, or a size is missing."""
    require_config(folder)
    given = read_object(folder / CONFIG)
    family = family_of(_architecture(given, folder))
    for key in _REQUIRED:
        if not isinstance(given.get(key), int):
            raise UserError(f"{folder / CONFIG} gives no {key}: copy the file of the model it comes from again.")
    values = {**family.defaults, **given}
    return ModelConfig(family=family, shape=_shape(family, values, folder), values=values, rope=_rope(values))


def _architecture(given: dict[str, Any], folder: Path) -> str:
    names = given.get("architectures")
    if not isinstance(names, list) or not names:
        raise UserError(
            f"{folder / CONFIG} names no architectures: add the one of the model, such as LlamaForCausalLM."
        )
    return str(names[0])


def _shape(family: Family, values: dict[str, Any], folder: Path) -> Shape:
    heads = values["num_attention_heads"]
    experts = values.get("num_local_experts") or values.get("num_experts") or 0
    if bool(experts) != bool(family.experts):
        raise UserError(f"{folder / CONFIG} gives {experts} experts to a {family.name} model: correct the file.")
    return Shape(
        layers=values["num_hidden_layers"],
        vocabulary=values["vocab_size"],
        hidden=values["hidden_size"],
        heads=heads,
        groups=values["num_key_value_heads"] or heads,
        head=values["head_dim"] or values["hidden_size"] // heads,
        ffn=values["intermediate_size"],
        experts=experts,
        expert_ffn=values["moe_intermediate_size"] or values["intermediate_size"],
        tied=bool(values["tie_word_embeddings"]),
        attention_bias=bool(values["attention_bias"]),
    )


def _rope(values: dict[str, Any]) -> dict[str, Any]:
    """Return rope_parameters, which transformers 5 writes; earlier versions write rope_theta and rope_scaling."""
    given: dict[str, Any] = values.get("rope_parameters") or values["rope_scaling"] or {}
    defaults = {key: values[key] for key in ("rope_theta", "partial_rotary_factor")}
    return {"rope_type": given.get("type", "default")} | defaults | given
