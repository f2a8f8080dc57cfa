"""Sections of params.yaml whose keys belong to the plug-in that they name: unions over whatever is found.

Two forms. `Chosen`: one plug-in, `{name: gspo, clip_low: 0.0003}`. `Several`: a mapping from names to parameters,
`{accuracy: {weight: 1.0}}`. A name's own Config checks its keys; only the plug-ins that are named are imported.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from dagrpo.errors import UserError
from dagrpo.params.base import Section
from dagrpo.plugins import Plugins


class Choice(Section):
    """Parameters of one plug-in, with its name. A plug-in's Config adds its own keys."""

    name: str = Field(description="Which one.")


class Configured(Protocol):
    """A plug-in with parameters."""

    @property
    def config(self) -> type[Any]:
        """The Section that checks them."""


class InvalidPart(ValueError):
    """What is wrong inside a part, and the keys that the part knows."""

    def __init__(self, error: ValidationError, known: list[str]) -> None:
        super().__init__(str(error))
        self.error = error
        self.known = known


def _checked(plugins: Plugins[Any], name: str, values: Any) -> Section:
    config = plugins.get(name).config
    try:
        return config.model_validate(values)
    except ValidationError as error:
        raise InvalidPart(error, list(config.model_fields)) from None


class Chosen:
    """Marks a field of type Choice: a mapping with `name`, checked by the Config of the plug-in of that name."""

    def __init__(self, plugins: Plugins[Any]) -> None:
        self.plugins = plugins

    def check(self, values: Any) -> Section:
        """The plug-in's Config. UserError when none is named, InvalidPart when the Config refuses a key."""
        if isinstance(values, Choice):
            return values
        if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
            raise UserError(
                f"{self.plugins.key} is missing: write {{name: {self.plugins.own_names()[0]}}} or another {self.plugins.what}"
            )
        return _checked(self.plugins, values["name"], values)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        own = self.plugins.own_names()
        return {"oneOf": [*(_named(self.plugins, name) for name in own), _foreign(own)]}


class Several:
    """Marks a field of type dict[str, Section]: names of plug-ins, each with its own parameters."""

    def __init__(self, plugins: Plugins[Any]) -> None:
        self.plugins = plugins

    def check(self, values: Any) -> dict[str, Section]:
        """Each plug-in's Config, in the order of names, so that the order of the file changes no sum."""
        if not isinstance(values, Mapping):
            raise UserError(f"{self.plugins.key} is {values!r}: write a mapping from a name to its parameters")
        checked: dict[str, Section] = {}
        for name in sorted(values):
            try:
                given = values[name]
                checked[name] = given if isinstance(given, Section) else _checked(self.plugins, name, given or {})
            except InvalidPart as error:
                raise InvalidPart(
                    ValidationError.from_exception_data(
                        name, [{**item, "loc": (name, *item["loc"])} for item in _again(error.error)]
                    ),
                    [f"{name}.{key}" for key in error.known],
                ) from None
        return checked
