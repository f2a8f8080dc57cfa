"""Sections whose keys belong to the plug-in that they name.

Two forms. `Chosen`: one plug-in, `{name: gspo, clip_low: 0.0003}`. `Several`: a mapping from names to parameters,
`{accuracy: {weight: 1.0}}`. The Config of the named plug-in checks the keys, and no other plug-in is imported.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.core.plugins import Plugins
from dagrpo.core.section import Section

LONGEST_NAME = 200
MOST_PARTS = 100
PluginName = Annotated[str, Field(max_length=LONGEST_NAME)]


class Choice(Section):
    """Parameters of one plug-in, and its name. The Config of a plug-in adds its own keys."""

    name: PluginName = Field(description="Name of the plug-in.")


class Configured(Protocol):
    """A plug-in with parameters."""

    @property
    def config(self) -> type[Section]:
        """Return the section that checks the parameters."""


class InvalidPart(ValueError):
    """Faults in the keys of plug-ins: pydantic's own records, with the plug-in's path and known keys."""

    def __init__(self, errors: Sequence[Mapping[str, Any]], owner: str, known: Sequence[str]) -> None:
        super().__init__("; ".join(f"{error['loc']}: {error['msg']}" for error in errors))
        self.errors = errors
        self.owner = owner
        self.known = known


class Chosen:
    """Marker of a field of type Choice: a mapping with `name`, checked by the Config of the plug-in of that name.

    `default`: the name where a mapping has none; None: it has to have one.
    """

    def __init__(self, plugins: Plugins[Any], default: str | None = None) -> None:
        self.plugins = plugins
        self.default = default

    def check(self, values: Any) -> Section:
        """Return the plug-in's Config. Raises UserError if no plug-in is named, InvalidPart if the Config refuses a key."""
        if isinstance(values, Choice):
            return values
        if isinstance(values, Mapping) and self.default is not None:
            values = {"name": self.default, **values}
        if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
            section = self.plugins.key.rpartition(".")[0]
            names = ", ".join(self.plugins.own_names())
            raise UserError(f"{section} is {brief(values)}: write {section}: {{name: ...}} with one of {names}")
        return _checked(self.plugins, values["name"], values)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        own = self.plugins.own_names()
        variants = [self.variant(name) for name in own]
        name_of_another = {
            "type": "string",
            "maxLength": LONGEST_NAME,
            "not": {"enum": own},
            "description": "installed, or an import path",
        }
        other = {"type": "object", "properties": {"name": name_of_another}, "required": ["name"]}
        return {"oneOf": [*variants, other]}

    def variant(self, name: str) -> dict[str, Any]:
        """Return the JSON schema of one plug-in's parameters."""
        schema = config_of(self.plugins, name).model_json_schema()
        return {**schema, "properties": {**schema["properties"], "name": {"const": name}}, "title": name}


class Several:
    """Marker of a field of type dict[str, Section]: names of plug-ins, each with its own parameters."""

    def __init__(self, plugins: Plugins[Any]) -> None:
        self.plugins = plugins

    def check(self, values: Any) -> dict[str, Section]:
        """Return each plug-in's Config, in the order of the names: the order of the file changes no sum."""
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise UserError(f"{self.plugins.key} is {brief(values)}: write a mapping from names to parameters")
        checked: dict[str, Section] = {}
        errors: list[Mapping[str, Any]] = []
        known: list[str] = []
        for name in sorted(values):
            try:
                value = values[name]
                checked[name] = value if isinstance(value, Section) else _checked(self.plugins, name, value)
            except InvalidPart as error:
                errors += [{**each, "loc": (name, *each["loc"])} for each in error.errors]
                known += [f"{name}.{key}" for key in error.known]
        if errors:
            raise InvalidPart(errors, "it", known)
        return checked

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        variants = {name: self.variant(name) for name in self.plugins.own_names()}
        return {
            "type": "object",
            "properties": variants,
            "additionalProperties": {"type": "object"},
            "maxProperties": MOST_PARTS,
        }

    def variant(self, name: str) -> dict[str, Any]:
        """Return the JSON schema of one plug-in's parameters."""
        return {**config_of(self.plugins, name).model_json_schema(), "title": name}


class NameOf:
    """Marker of a field of type str: the name or import path of a plug-in without parameters, or one of `also`."""

    def __init__(self, plugins: Plugins[Any], also: Sequence[str] = ()) -> None:
        self.plugins = plugins
        self.also = also

    def check(self, name: Any) -> str:
        """Return the name if such a plug-in exists, else raise UserError."""
        if not isinstance(name, str):
            given = "null" if name is None else brief(name)
            raise UserError(f"{self.plugins.key} has {given} in place of the name of a {self.plugins.what}")
        if name not in self.also:
            self.plugins.get(name)
        return name

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "anyOf": [{"enum": [*self.also, *self.plugins.own_names()]}, {"type": "string", "maxLength": LONGEST_NAME}]
        }


def config_of(plugins: Plugins[Any], name: str) -> type[Section]:
    """Return the section that checks the parameters of a plug-in."""
    plugin: Configured = plugins.get(name)
    return plugin.config


def _checked(plugins: Plugins[Any], name: str, values: Any) -> Section:
    config = config_of(plugins, name)
    try:
        return config.model_validate(values)
    except ValidationError as error:
        raise InvalidPart(error.errors(), name, list(config.model_fields)) from None
