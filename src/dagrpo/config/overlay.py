"""Overlays of mappings: presets, overrides, and the differences they make."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from dagrpo.config.documents import yaml_value as written
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief, one_line
from dagrpo.core.plugin_sections import Chosen
from dagrpo.core.section import Section
from dagrpo.utils.files import digest_of
from dagrpo.utils.yaml_text import yaml_value

OVERRIDE = "__"
LONGEST_SHOWN = 400  # characters of a value


def _chosen(section: type[Section], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys whose parameters belong to the plug-in that they name."""
    for name, field in section.model_fields.items():
        if any(isinstance(marker, Chosen) for marker in field.metadata):
            yield prefix + name
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _chosen(field.annotation, f"{prefix}{name}.")


CHOSEN = frozenset(_chosen(Params))  # algorithm.loss, algorithm.advantage
MIXTURE = "experiment.train"  # whose tasks with their shares are one value


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Lay `overlay` over `base`: mappings are merged key by key, everything else is replaced.

    If the overlay names another loss or advantage, the parameters of the former one are dropped; tasks with shares are one value.
    """
    if prefix in CHOSEN and "name" in base and overlay.get("name", base["name"]) != base["name"]:
        return dict(overlay)
    result = dict(base)
    for key, value in overlay.items():
        inner = result.get(key)
        dotted = f"{prefix}.{key}".lstrip(".")
        if isinstance(inner, Mapping) and isinstance(value, Mapping) and dotted != MIXTURE:
            result[key] = merged(inner, value, dotted)
        else:
            result[key] = value
    return result


def with_overrides(config: Mapping[str, Any], source: str = "params.yaml with --config") -> dict[str, Any]:
    """Return Snakemake's config with `--config training__steps=3` in its section. Raises UserError for a value that is not YAML.

    Two underscores stand for the dot, which Snakemake refuses in a key.
    """
    given = {key.replace(OVERRIDE, "."): _typed(key, value, source) for key, value in config.items() if OVERRIDE in key}
    return merged({key: value for key, value in config.items() if OVERRIDE not in key}, with_keys({}, given))


def with_keys(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay values over nested ones, each in the sections that its dotted key names."""
    result = dict(values)
    for key, value in changes.items():
        result = merged(result, reduce(lambda inner, name: {name: inner}, reversed(key.split(".")), value))
    return result


def _typed(key: str, value: Any, source: str) -> Any:
    """Parse a value from the command line, where Snakemake leaves null and the items of lists and mappings as texts."""
    if isinstance(value, list):
        return [_typed(key, item, source) for item in value]
    if isinstance(value, Mapping):
        return {name: _typed(f"{key}.{name}", item, source) for name, item in value.items()}
    if not isinstance(value, str):
        return value
    dotted = key.replace(OVERRIDE, ".")
    return yaml_value(value, source, f"{source}: `{dotted}` is {brief(value)}, which is not valid YAML", "correct it")


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested sections into dotted keys. Lists stay whole, and so do empty mappings and tasks with shares."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value and f"{prefix}{key}" != MIXTURE:
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result


@dataclass(frozen=True, slots=True)
class Change:
    """A parameter whose value differs, both values as params.yaml writes them."""

    key: str  # dotted
    old: str
    new: str


def changes(old: Mapping[str, Any], new: Params) -> list[Change]:
    """List the differences between a params.yaml, which may hold mistakes, and other parameters, in the latter's order."""
    before, after = flat(_whole(old)), flat(new.model_dump())
    keys = [*after, *(key for key in before if key not in after)]
    return [
        Change(key, _text(before, key), _text(after, key))
        for key in keys
        if key not in before or key not in after or before[key] != after[key]
    ]


def _whole(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the defaults of missing keys; invalid values stay as they are."""
    try:
        return parse(values).model_dump()
    except UserError:
        return merged(Params().model_dump(), values)


def _text(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "(none)"
    try:
        return one_line(written(values[key]), LONGEST_SHOWN)
    except TypeError:  # a value that no parameter has
        return brief(values[key])


DIGITS = 8
MISSING = object()
# Parameters that a history of runs names even at their defaults.
SHOWN = ("model.name", "experiment.train", "algorithm.loss.name", "training.steps", "training.learning_rate")


def configuration_digest(params: Params) -> str:
    """Return one digest for all runs with equal parameters, without section runtime, which changes no result."""
    return digest_of(params.model_dump(exclude={"runtime"}))[:DIGITS]


def configuration_of(params: Params) -> dict[str, Any]:
    """Return the digest of an experiment's parameters, its seeds, and the non-default parameters by dotted key."""
    own, defaults = (flat(each.model_dump(exclude={"runtime"})) for each in (params, Params()))
    changed = {key: value for key, value in own.items() if key in SHOWN or defaults.get(key, MISSING) != value}
    return {"digest": configuration_digest(params), "seeds": params.experiment.seeds, "changed": changed}
