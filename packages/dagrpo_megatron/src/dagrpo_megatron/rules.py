"""Rules of the family tables: Hugging Face tensors of each Megatron tensor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Dimension = Literal["vocabulary", "hidden", "query", "key", "head", "ffn", "gate_and_up", "experts", "expert_ffn"]
Place = Literal["model", "layer", "expert"]
Condition = Literal["untied", "attention_bias"]  # attributes of Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Rule for one Megatron tensor: its key, and the Hugging Face tensors whose rows it holds, one after the other.

    `place` says what the names lie below: nothing, `decoder.layers.` and `model.layers.N.`, or an expert of a layer.
    With `interleaved`, the rows of query, key and value alternate by query group: all queries of the first group, its
    key, its value, then those of the second group.
    """

    place: Place
    megatron: str
    names: tuple[str, ...]
    rows: tuple[Dimension, ...]  # one for each name
    columns: tuple[Dimension, ...] = ()
    interleaved: bool = False
    only_if: Condition | None = None
    also_known_as: tuple[str, ...] = ()  # keys that Megatron writes instead of `megatron`


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Table of one family: the architectures of config.json that it serves, its rules, its own Megatron arguments.

    `experts` is where its experts lie below a layer, in the Hugging Face layout; `defaults` are the values that a config.json of
    it may leave out.
    """

    name: str
    architectures: tuple[str, ...]
    rules: tuple[Rule, ...]
    arguments: tuple[str, ...] = ()
    experts: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)


def whole(megatron: str, name: str, *shape: Dimension, only_if: Condition | None = None) -> Rule:
    """Return the rule for a tensor outside the layers, copied as it is."""
    return Rule(place="model", megatron=megatron, names=(name,), rows=shape[:1], columns=shape[1:], only_if=only_if)


def layer(megatron: str, name: str, *shape: Dimension, also_known_as: tuple[str, ...] = ()) -> Rule:
    """Return the rule for a tensor of every layer, copied as it is."""
    return Rule(
        place="layer",
        megatron=megatron,
        names=(name,),
        rows=shape[:1],
        columns=shape[1:],
        also_known_as=also_known_as,
    )


def gate_and_up(megatron: str, gate: str, up: str) -> Rule:
    """Return the rule for the two halves of a gated MLP of every layer, gate first."""
    return Rule(place="layer", megatron=megatron, names=(gate, up), rows=("ffn", "ffn"), columns=("hidden",))


def query_key_value(kind: Literal["weight", "bias"], only_if: Condition | None = None) -> Rule:
    """Return the rule for the projections of every layer's attention, interleaved by query group."""
    return Rule(
        place="layer",
        megatron=f"self_attention.linear_qkv.{kind}",
        names=tuple(f"self_attn.{part}_proj.{kind}" for part in "qkv"),
        rows=("query", "key", "key"),
        columns=("hidden",) if kind == "weight" else (),
        interleaved=True,
        only_if=only_if,
    )


def experts(gate: str, up: str, down: str) -> tuple[Rule, Rule]:
    """Return the rules for the gated MLP of every expert of every layer."""
    first = Rule(
        place="expert",
        megatron="mlp.experts.experts.linear_fc1.weight",
        names=(f"{gate}.weight", f"{up}.weight"),
        rows=("expert_ffn", "expert_ffn"),
        columns=("hidden",),
    )
    second = Rule(
        place="expert",
        megatron="mlp.experts.experts.linear_fc2.weight",
        names=(f"{down}.weight",),
        rows=("hidden",),
        columns=("expert_ffn",),
    )
    return first, second
