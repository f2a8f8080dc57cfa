"""Tables of model families, one for each, from families.yaml.

A tensor that no rule names is an error, so a table is either right or refuses.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from dagrpo.core.errors import UserError

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
    defaults: Mapping[str, Any]


def _read(path: Path) -> Iterator[Family]:
    tables = yaml.safe_load(path.read_text(encoding="utf-8"))
    for given in tables["families"]:
        defaults = tables["defaults"] | given.get("defaults", {})
        rules = tuple(Rule(**_with_tuples(rule)) for part in given["rules"] for rule in part)
        yield Family(**_with_tuples(given) | {"rules": rules, "defaults": defaults})


def _with_tuples(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}


FAMILIES = tuple(_read(Path(__file__).with_name("families.yaml")))


def family_of(architecture: str) -> Family:
    """Return the table for an architecture of config.json. Raises UserError if there is no table for it."""
    for family in FAMILIES:
        if architecture in family.architectures:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise UserError(
        f"{architecture} has no table for Megatron (known are {known}): "
        "keep checkpoint.format dcp, or add a table to packages/dagrpo_megatron/src/dagrpo_megatron/families.yaml."
    )
