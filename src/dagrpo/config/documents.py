"""Documents generated from the schema: params.yaml, JSON schema, docs/parameters.md.

A test fails if one of them differs from the schema; `make params` writes them again.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from operator import attrgetter
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dagrpo.config.schema import Params
from dagrpo.core.plugin_sections import Choice, Chosen, Several, config_of
from dagrpo.core.section import Section

SCHEMA_PATH = "workflow/schemas/params.schema.json"
TABLE_PATH = "docs/parameters.md"
WIDTH = 140
OFTEN_CHANGED = (
    "experiment",
    "model",
    "training",
    "rollout",
    "reward",
    "algorithm",
    "sft",
    "evaluation",
)  # first in the file
HEAD = ("| key | allowed | default | meaning |", "|---|---|---|---|")


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
        value, others = getattr(section, name), _names(_marker(field))
        if id(value) in hidden:
            continue
        if isinstance(section, Choice) and name == "name":
            comment = f"{_meaning(type(section))} One of {names}; each has its own keys."
        else:
            comment = f"{field.description}"
        if isinstance(value, Section):
            yield from _commented(f"{indent}{name}:", comment, indent)
            yield from _lines(value, indent + "  ", hidden, others)
        elif isinstance(_marker(field), Several):
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
    tasks = (experiment.train, *experiment.evaluate, *experiment.tasks)
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
        yield from _commented(f"{indent}{yaml_value(name)}:", _meaning(type(part)), indent)
        yield from _lines(part, indent + "  ")


def _meaning(config: type[Section]) -> str:
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


def _allowed(property_schema: dict[str, Any]) -> str:
    options = property_schema.get("anyOf", [property_schema])
    return " or ".join(_one_allowed(option) for option in options)


def _one_allowed(option: dict[str, Any]) -> str:
    if "enum" in option:
        return ", ".join(f"`{value}`" for value in option["enum"])
    if "const" in option:
        return f"`{option['const']}`"
    if option.get("type") == "array":
        return f"list of {_allowed(option['items'])}"
    names = {
        "exclusiveMinimum": "> ",
        "minimum": ">= ",
        "exclusiveMaximum": "< ",
        "maximum": "<= ",
        "pattern": "matching ",
    }
    bounds = [
        f"{sign}{option[key]:,}" if key != "pattern" else f"{sign}`{option[key]}`"
        for key, sign in names.items()
        if key in option
    ]
    return " ".join([option.get("type", "any"), ", ".join(bounds)]).strip()


def _rows(section: Section, schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        key, value, property_schema = prefix + name, getattr(section, name), schema["properties"][name]
        marker = _marker(field)
        if isinstance(marker, Chosen):
            yield f"| `{key}.name` | {_names(marker, '`')} | `{value.name}` | {_description(field)} Its keys: below. |"
        elif isinstance(marker, Several):
            names = ", ".join(f"`{each}`" for each in value) or "none"
            yield f"| `{key}` | parameters by name: {_names(marker, '`')} | {names} | {_description(field)} Their keys: below. |"
        elif isinstance(value, Section):
            yield from _rows(value, _definition(property_schema, definitions), definitions, f"{key}.")
        else:
            yield _row(key, property_schema, value, field)


def _row(key: str, property_schema: dict[str, Any], value: Any, field: FieldInfo) -> str:
    default = "to be given" if value is PydanticUndefined else f"`{yaml_value(value)}`"
    return f"| `{key}` | {_allowed(property_schema)} | {default} | {_description(field)} |"


def _description(field: FieldInfo) -> str:
    """Return a description with `<name>` outside backticks escaped: Markdown would take it for HTML, and show nothing."""
    parts = (field.description or "").split("`")
    parts[::2] = [re.sub(r"<(?=[a-z])", r"\\<", part) for part in parts[::2]]
    return "`".join(parts)


def _definition(property_schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    reference: str = property_schema.get("$ref") or property_schema["allOf"][0]["$ref"]
    return definitions[reference.rsplit("/", 1)[1]]  # type: ignore[no-any-return]


def _marker(field: FieldInfo) -> Chosen | Several | None:
    return next((each for each in field.metadata if isinstance(each, Chosen | Several)), None)


def _names(marker: Chosen | Several | None, quote: str = "") -> str:
    names = [] if marker is None else marker.plugins.own_names()
    return ", ".join(f"{quote}{name}{quote}" for name in names) + ", or an import path"


def _variants(section: type[Section], prefix: str) -> Iterator[str]:
    """Yield the Markdown lines of a table for each plug-in that a section may name."""
    for name, field in section.model_fields.items():
        marker = _marker(field)
        if marker is None:
            continue
        for plugin in marker.plugins.own_names():
            config = config_of(marker.plugins, plugin)
            chosen = isinstance(marker, Chosen)
            key = f"{prefix}{name}" if chosen else f"{prefix}{name}.{plugin}"
            rows = [
                _row(
                    f"{key}.{own}",
                    marker.variant(plugin)["properties"][own],
                    info.get_default(call_default_factory=True),
                    info,
                )
                for own, info in config.model_fields.items()
                if not (chosen and own in Choice.model_fields)  # `name` says which it is; a part's own is a key
            ]
            yield from ["", f"### {key}: {plugin}" if chosen else f"### {key}", "", _meaning(config)]
            yield from ["", *HEAD, *rows] if rows else []


def table() -> str:
    """Return the page docs/parameters.md: one table per section, and one for each plug-in of the package."""
    schema = Params.model_json_schema()
    parts = [
        "# Parameters",
        "",
        "Generated from the sections of the configuration and the plug-ins by `make params`. Unknown keys are refused.",
        "An import path, `module:attribute`, names a plug-in of your own, with its own keys:",
        "[where plug-ins are found](algorithms.md#where-plug-ins-are-found).",
    ]
    defaults = Params()
    for name, field in Params.model_fields.items():
        section = getattr(defaults, name)
        definition = _definition(schema["properties"][name], schema["$defs"])
        parts += ["", f"## {name}", "", f"{field.description}", "", *HEAD]
        parts += [*_rows(section, definition, schema["$defs"], f"{name}."), *_variants(type(section), f"{name}.")]
    return "\n".join(parts) + "\n"
