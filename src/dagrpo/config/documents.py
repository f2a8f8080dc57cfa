"""Documents generated from the schema: params.yaml and its JSON schema.

A test fails if one of them differs from the schema; `dagrpo generate` writes them again.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from operator import attrgetter
from typing import Any

from pydantic.fields import FieldInfo

from dagrpo.config.schema import Params
from dagrpo.core.plugin_sections import Choice, Chosen, Several
from dagrpo.core.section import Section

SCHEMA_PATH = "workflow/schemas/params.schema.json"
WIDTH = 140
# First in params.yaml.
OFTEN_CHANGED = (
    "experiment",
    "model",
    "training",
    "rollout",
    "reward",
    "algorithm",
    "sft",
    "evaluation",
)


def yaml_value(value: Any) -> str:
    """Return a scalar or list as YAML that versions 1.1 and 1.2 read alike: floats in plain decimal notation."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{yaml_value(key)}: {yaml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(yaml_value(item) for item in value) + "]"
    return value if isinstance(value, str) and _is_plain(value) else json.dumps(value)


def _is_plain(text: str) -> bool:
    words_of_yaml = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
    return (
        text.replace("_", "a").replace("-", "a").isalnum() and text[0].isalpha() and text.lower() not in words_of_yaml
    )


def _lines(section: Section, indent: str, hidden: Collection[int] = (), names: str = "") -> Iterator[str]:
    """Yield a section's lines, its subsections last.

    hidden: ids of subsections to leave out. names: the allowed values of the key `name` of a plug-in's parameters.
    """
    fields = type(section).model_fields.items()
    for name, field in sorted(fields, key=lambda item: isinstance(getattr(section, item[0]), Section | dict)):
        value, others = getattr(section, name), names_of(marker_of(field))
        if id(value) in hidden:
            continue
        if isinstance(section, Choice) and name == "name":
            comment = f"{meaning_of(type(section))} One of {names}; each has its own keys."
        else:
            comment = f"{field.description}"
        if isinstance(value, Section):
            yield from _commented(f"{indent}{name}:", comment, indent)
            yield from _lines(value, indent + "  ", hidden, others)
        elif isinstance(marker_of(field), Several):
            comment = f"{comment} Any of {others}; each has its own keys."
            yield from _commented(f"{indent}{name}:" if value else f"{indent}{name}: {{}}", comment, indent)
            yield from _part_lines(value, indent + "  ")
        else:
            yield from _commented(f"{indent}{name}: {yaml_value(value)}", comment, indent)


def _commented(line: str, comment: str, indent: str) -> list[str]:
    """Return a line with its comment behind it, or above it where that would be too wide."""
    whole = f"{line}  # {comment}"
    return [whole] if len(whole) <= WIDTH else [f"{indent}# {comment}", line]


def _unselected(params: Params) -> set[int]:
    """Return the ids of sections at their defaults that nothing selected reads, and of limits that seldom change."""
    experiment, defaults = params.experiment, Params()
    tasks = experiment.tasks
    generators = [name for name in type(params.data).model_fields if isinstance(getattr(params.data, name), Section)]
    readers = {
        **{f"data.{name}": any(task.startswith(name) for task in tasks) for name in generators},
        "model.fresh": params.model.source == "fresh",
        "model.fresh.vision": params.model.fresh.vision.family != "none",
        "training.gates": False,
        "reward.unit_tests": False,
        "evaluation.scoring.unit_tests": False,
        "runtime.teacher": params.algorithm.teacher.source != "none",
        "runtime.reward_model": "reward_model" in params.reward.components,
        "runtime.backend": params.training.backend.name != "fsdp",
    }
    unread = (attrgetter(name) for name, is_read in readers.items() if not is_read)
    return {id(section(params)) for section in unread if section(params) == section(defaults)}


def _part_lines(parts: Mapping[str, Section], indent: str) -> Iterator[str]:
    for name, part in parts.items():
        yield from _commented(f"{indent}{yaml_value(name)}:", meaning_of(type(part)), indent)
        yield from _lines(part, indent + "  ")


def meaning_of(config: type[Section]) -> str:
    """Return the first line of a plug-in's Config docstring."""
    return (config.__doc__ or "Not described.").strip().partition("\n")[0]


def params_yaml(params: Params) -> str:
    """Return the text of params.yaml: every key with its description, without the sections of what is not selected."""
    head = [
        "# yaml-language-server: $schema=./workflow/schemas/params.schema.json",
        "# The experiment: what is often changed stands first. `dagrpo use X` writes another one. docs/parameters.md has all keys.",
        "# Left out, at their defaults: sections of tasks and engines that it does not use, training.gates and unit_tests.",
    ]
    body: list[str] = []
    hidden = _unselected(params)
    for name in sorted(Params.model_fields, key=lambda name: (*OFTEN_CHANGED, name).index(name)):
        section = getattr(params, name)
        body += ["", f"{name}:  # {Params.model_fields[name].description}", *_lines(section, "  ", hidden)]
    return "\n".join(head + body) + "\n"


def json_schema() -> str:
    """Return the JSON schema of params.yaml, for editors."""
    return json.dumps(Params.model_json_schema(), indent=2, sort_keys=True) + "\n"


def marker_of(field: FieldInfo) -> Chosen | Several | None:
    """Return what marks a field whose keys belong to plug-ins."""
    return next((each for each in field.metadata if isinstance(each, Chosen | Several)), None)


def names_of(marker: Chosen | Several | None, quote: str = "") -> str:
    """List the plug-ins that a field may name."""
    names = [] if marker is None else marker.plugins.own_names()
    return ", ".join(f"{quote}{name}{quote}" for name in names) + ", or an import path"
