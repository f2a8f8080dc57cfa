"""Check the calls of a policy in bounded work.

The event loop waits for the check. It covers types, required keys, choices, numbers and lengths. Patterns may take Python
exponential time, so the tool itself has to check them, as it does other keywords outside CHECKED.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dagrpo.chat.tool_calls import Attempt, Schemas

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

    Keyword = Callable[[Any, Any, Any, Mapping[str, Any]], Iterator[ValidationError]]

LONGEST_FAULT = 300  # characters of jsonschema's sentence, which quotes the arguments
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


def checked(attempt: Attempt, schemas: Schemas) -> Attempt:
    """Return the attempt, with status unknown_tool or wrong_arguments if it is that."""
    if attempt.status != "ok":
        return attempt
    if attempt.name not in schemas:
        return replace(attempt, status="unknown_tool", fault=unknown_tool(attempt.name, schemas))
    fault = fault_of(attempt.arguments or {}, schemas[attempt.name])
    return replace(attempt, status="wrong_arguments", fault=fault) if fault else attempt


def unknown_tool(name: str, known: Iterable[str]) -> str:
    """Return the policy's message for a call of an unknown tool."""
    return f"There is no tool `{name[:100]}`; the tools are: {', '.join(known) or 'none'}."


def fault_of(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return the fault of arguments by a JSON schema; "" if they have none, or if the schema is invalid.

    The schema may come from another program or server, which then has to refuse wrong arguments itself.
    """
    from jsonschema.exceptions import best_match

    try:
        _steps_left.set(MOST_STEPS)
        error: ValidationError | None = best_match(
            _validator(json.dumps(schema, sort_keys=True)).iter_errors(arguments)
        )
    except (TooMuchWork, RecursionError, ArithmeticError) as failure:  # of a schema that recurs, and of huge numbers
        return f"The arguments cannot be checked ({type(failure).__name__})."
    except Exception:  # noqa: BLE001  # the border to a schema of other people's, with an invalid type or reference
        return ""
    if error is None:
        return ""
    place = "".join(f"[{step!r}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    where = f" at {place.removeprefix('.')}" if place else ""
    return f"The arguments are wrong{where}: {error.message[:LONGEST_FAULT]}."


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
