"""What is generated from the schema: params.yaml with its comments, the JSON schema, the table in docs/parameters.md.

A test fails when one of them is not what the schema says; `make params` writes them again.
"""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from dagrpo.params.base import Section
from dagrpo.params.schema import Params

SCHEMA_PATH = "workflow/schemas/params.schema.json"
TABLE_PATH = "docs/parameters.md"


def yaml_value(value: Any) -> str:
    """A scalar or list as YAML that versions 1.1 and 1.2 read alike: floats in plain decimal notation."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    if isinstance(value, list):
        return "[" + ", ".join(yaml_value(item) for item in value) + "]"
    return value if isinstance(value, str) and _is_plain(value) else json.dumps(value)


def _is_plain(text: str) -> bool:
    words_of_yaml = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
    return (
        text.replace("_", "a").replace("-", "a").isalnum() and text[0].isalpha() and text.lower() not in words_of_yaml
    )


def _lines(section: Section, indent: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        yield f"{indent}# {field.description}"
        if isinstance(value, Section):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {yaml_value(value)}"


def params_yaml(params: Params) -> str:
    """The text of params.yaml: every key, each with its description above it."""
    head = [
        "# yaml-language-server: $schema=./workflow/schemas/params.schema.json",
        "# The experiment: every parameter that changes a result. `dagrpo use presets/X.yaml` writes another one.",
    ]
    body: list[str] = []
    for name, field in Params.model_fields.items():
        body += ["", f"# {field.description}", f"{name}:", *_lines(getattr(params, name), "  ")]
    return "\n".join(head + body) + "\n"


def json_schema() -> str:
    """The JSON schema of params.yaml, for editors."""
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
        return f"list of {_one_allowed(option['items'])}"
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
        value, property_schema = getattr(section, name), schema["properties"][name]
        if isinstance(value, Section):
            reference = property_schema.get("$ref") or property_schema["allOf"][0]["$ref"]
            yield from _rows(value, definitions[reference.rsplit("/", 1)[1]], definitions, f"{prefix}{name}.")
        else:
            yield f"| `{prefix}{name}` | {_allowed(property_schema)} | `{yaml_value(value)}` | {field.description} |"


def table() -> str:
    """The page docs/parameters.md: one table per section."""
    schema = Params.model_json_schema()
    parts = [
        "# Parameters",
        "",
        "Generated from `src/dagrpo/params/` by `make params`. A key that is not here is refused.",
    ]
    defaults = Params()
    for name, field in Params.model_fields.items():
        section = getattr(defaults, name)
        head = [
            "",
            f"## {name}",
            "",
            f"{field.description}",
            "",
            "| key | allowed | default | meaning |",
            "|---|---|---|---|",
        ]
        reference = schema["properties"][name]["$ref"].rsplit("/", 1)[1]
        parts += head + list(_rows(section, schema["$defs"][reference], schema["$defs"], f"{name}."))
    return "\n".join(parts) + "\n"
