"""Check arguments against untrusted JSON schemas in bounded work.

The event loop waits for the check. It covers types, required keys, choices, numbers and lengths. Patterns may take Python
exponential time, so the tool itself has to check them, as it does other keywords outside CHECKED.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

    Keyword = Callable[[Any, Any, Any, Mapping[str, Any]], Iterator[ValidationError]]

MOST_STEPS = 50_000  # of one check, which takes a processor less than a second
CHARACTERS_PER_STEP = 100  # of the sentence of an error, which quotes schema and arguments
CHECKED = (
    *("type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "$ref"),
    *("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    *("items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
)
_steps_left: ContextVar[int] = ContextVar("steps_left")


class TooMuchWork(Exception):
    """Error of a schema that asks for more than MOST_STEPS with these arguments."""


def faults(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> "Iterator[ValidationError]":
    """Yield the faults of the arguments.

    Raises TooMuchWork, RecursionError or ArithmeticError, or any error of jsonschema over an invalid schema.
    """
    _steps_left.set(MOST_STEPS)
    return _validator(json.dumps(schema, sort_keys=True)).iter_errors(arguments)


@lru_cache(maxsize=1024)
def _validator(schema: str) -> "Validator":
    from referencing import Registry

    # jsonschema's own registry would fetch what a `$ref` names, from the network and from this machine's files
    return _bounded()(json.loads(schema, object_hook=_without_dialect), registry=Registry())


@lru_cache
def _bounded() -> "type[Validator]":
    from jsonschema import Draft202012Validator, validators

    keywords = {name: _counted(Draft202012Validator.VALIDATORS[name]) for name in CHECKED}
    keywords["$ref"] = _left_out_where(lambda value, schema: not _is_within(value), keywords["$ref"])
    keywords["additionalProperties"] = _left_out_where(
        lambda value, schema: "patternProperties" in schema, keywords["additionalProperties"]
    )
    return validators.create(meta_schema=Draft202012Validator.META_SCHEMA, validators=keywords)


def _without_dialect(part: dict[str, Any]) -> dict[str, Any]:
    """Return the schema part without `$schema` and `$id`.

    With `$schema` jsonschema would choose another validator; `$id` changes where a `$ref` leads. A property of such a name is kept,
    as its value is a schema and no text.
    """
    return {key: value for key, value in part.items() if key not in ("$schema", "$id") or not isinstance(value, str)}


def _is_within(reference: str) -> bool:
    return reference == "#" or reference.startswith("#/")


def _left_out_where(holds: Callable[[Any, Mapping[str, Any]], bool], keyword: "Keyword") -> "Keyword":
    """Return the keyword, which checks nothing where `holds` is true of its value and its schema."""

    def check(validator: Any, value: Any, instance: Any, schema: Mapping[str, Any]) -> "Iterator[ValidationError]":
        if not holds(value, schema):
            yield from keyword(validator, value, instance, schema) or ()

    return check


def _counted(keyword: "Keyword") -> "Keyword":
    """Return the keyword, which spends steps on the parts that it visits and the messages that it yields."""

    def check(validator: Any, value: Any, instance: Any, schema: Mapping[str, Any]) -> "Iterator[ValidationError]":
        _spend(1 + _parts(value) + _parts(instance))
        for error in keyword(validator, value, instance, schema) or ():
            _spend(1 + len(error.message) // CHARACTERS_PER_STEP)
            yield error

    return check


def _parts(value: Any) -> int:
    return len(value) if isinstance(value, (list, dict)) else 0


def _spend(steps: int) -> None:
    remaining = _steps_left.get() - steps
    if remaining < 0:
        raise TooMuchWork
    _steps_left.set(remaining)
