"""Small mappings laid over larger ones: presets, overrides, and the difference that they make."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from dagrpo.params.base import Section
from dagrpo.params.plugged import Chosen
from dagrpo.params.schema import Params

OVERRIDE = "__"


def _chosen(section: type[Section], prefix: str = "") -> Iterator[str]:
    """The dotted keys whose parameters belong to the plug-in that they name."""
    for name, field in section.model_fields.items():
        if any(isinstance(marker, Chosen) for marker in field.metadata):
            yield prefix + name
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _chosen(field.annotation, f"{prefix}{name}.")


CHOSEN = frozenset(_chosen(Params))  # algorithm.loss, algorithm.advantage


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`overlay` over `base`: mappings are merged key by key, everything else is replaced.

    Where the overlay names another loss or advantage, nothing is left of the parameters of the one before.
    """
    if prefix in CHOSEN and "name" in base and overlay.get("name", base["name"]) != base["name"]:
        return dict(overlay)
    result = dict(base)
    for key, value in overlay.items():
        inner = result.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            result[key] = merged(inner, value, f"{prefix}.{key}".lstrip("."))
        else:
            result[key] = value
    return result


def with_overrides(config: Mapping[str, Any]) -> dict[str, Any]:
    """Snakemake's config with `--config training__steps=3` laid over its section.

    Two underscores stand for the dot, which Snakemake refuses in a key.
    """
    overrides: dict[str, Any] = {}
    for key, value in config.items():
        if OVERRIDE in key:
            overrides = merged(overrides, _nested(key.split(OVERRIDE), _typed(value)))
    return merged({key: value for key, value in config.items() if OVERRIDE not in key}, overrides)


def _nested(keys: list[str], value: Any) -> dict[str, Any]:
    first, *rest = keys
    return {first: _nested(rest, value) if rest else value}


def _typed(value: Any) -> Any:
    """Snakemake reads lists and null on the command line as texts."""
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return yaml.safe_load(value) if isinstance(value, str) else value


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as one mapping of dotted keys. Lists stay whole, and so do empty mappings."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result


def difference(old: str, new: str) -> list[str]:
    """The lines that differ between two params.yaml texts, each with - or +, comments left out."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    return [line for line in changed if not line[1:].lstrip().startswith("#")]
