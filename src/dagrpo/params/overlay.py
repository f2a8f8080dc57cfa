"""Presets and overrides: small mappings laid over the defaults, and the difference they make."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dagrpo.params.documents import params_yaml
from dagrpo.params.schema import Params, parse, read_yaml

OVERRIDE = "__"


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`overlay` over `base`: mappings are merged key by key, everything else is replaced."""
    result = dict(base)
    for key, value in overlay.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result


def with_overrides(config: Mapping[str, Any]) -> dict[str, Any]:
    """Snakemake's config with `--config training__steps=3` laid over its section.

    Two underscores stand for the dot, which Snakemake refuses in a key.
    """
    result: dict[str, Any] = {}
    for key, value in sorted(config.items(), key=lambda item: OVERRIDE in item[0]):
        *sections, last = key.split(OVERRIDE)
        nested: dict[str, Any] = {last: _typed(value) if sections else value}
        for section in reversed(sections):
            nested = {section: nested}
        result = merged(result, nested)
    return result


def _typed(value: Any) -> Any:
    """Snakemake reads lists and null on the command line as texts."""
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return yaml.safe_load(value) if isinstance(value, str) else value


def read_preset(path: Path) -> Params:
    """A preset over the schema's defaults, checked."""
    return parse(merged(Params().model_dump(), read_yaml(path)), str(path))


def difference(old: str, new: str) -> list[str]:
    """The lines that differ between two params.yaml texts, each with - or +, comments left out."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    return [line for line in changed if not line[1:].lstrip().startswith("#")]


def preset_text(path: Path) -> str:
    """The params.yaml that a preset stands for."""
    return params_yaml(read_preset(path))
