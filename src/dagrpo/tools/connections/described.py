"""Describe a Python function to the policy.

The description is its name, its docstring, and a JSON schema of its signature. The docstring is in Google's style; its section
`Args:` has the description of each argument. Types are those that pydantic can describe: int, float, str, bool, list, dict, Optional,
Literal and combinations of them.
"""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from dagrpo.core.errors import UserError
from dagrpo.tools import ToolFunction

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def described(function: Callable[..., Any]) -> ToolFunction:
    """Return the function's description. Raises UserError, with the function and what it lacks."""
    name = function.__name__
    summary, meanings = _docstring(function, name)
    hints = _hints(function, name)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _NAMED or parameter.name not in hints:
            raise UserError(f"{name} cannot be a tool: give its argument {parameter} a type, and no star or slash.")
        property = _schema(hints[parameter.name], f"{name}, argument {parameter.name}")
        if parameter.name in meanings:
            property["description"] = meanings[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        properties[parameter.name] = property
    schema = {"type": "object", "properties": properties, "required": required}
    return ToolFunction(name=name, description=summary, parameters=schema)


def _docstring(function: Callable[..., Any], name: str) -> tuple[str, dict[str, str]]:
    """Return the summary, and the docstring's description of each argument."""
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    summary, meanings, _ = parse_google_format_docstring(inspect.getdoc(function) or "")
    if not summary:
        raise UserError(f"{name} cannot be a tool: give it a docstring, from which the policy learns its purpose.")
    return summary, meanings or {}


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UserError(
            f"{name} cannot be a tool: its type hints cannot be read ({error}): import what they name."
        ) from None


def _schema(hint: Any, place: str) -> dict[str, Any]:
    try:
        schema = TypeAdapter(hint).json_schema()
    except PydanticUserError as error:
        raise UserError(
            f"{place}: the type {hint} has no JSON schema ({error.message.splitlines()[0]}): use int, "
            "float, str, bool, list, dict and Literal."
        ) from None
    if "$defs" in schema:
        raise UserError(f"{place}: the type {hint} is no plain one: use int, float, str, bool, list, dict and Literal.")
    return schema
