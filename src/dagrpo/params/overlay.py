"""Presets and overrides: small mappings laid over the defaults, and the difference they make."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagrpo.params.documents import params_yaml
from dagrpo.params.schema import Params, parse, read_yaml


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`overlay` over `base`: mappings are merged key by key, everything else is replaced."""
    result = dict(base)
    for key, value in overlay.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result


def undotted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn `--config training.steps=3`, which arrives as one dotted key, into nested mappings."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        nested: dict[str, Any] = {last: value}
        for section in reversed(sections):
            nested = {section: nested}
        result = merged(result, nested)
    return result


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
