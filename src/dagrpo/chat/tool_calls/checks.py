"""Check that a call names a known tool and fits its schema."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagrpo.chat.tool_calls import Attempt, Schemas
from dagrpo.chat.tool_calls.bounded_schema import TooMuchWork, faults

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

LONGEST_FAULT = 300  # characters of jsonschema's sentence, which quotes the arguments


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
        error: ValidationError | None = best_match(faults(arguments, schema))
    except (TooMuchWork, RecursionError, ArithmeticError) as failure:  # of a schema that recurs, and of huge numbers
        return f"The arguments cannot be checked ({type(failure).__name__})."
    except Exception:  # noqa: BLE001  # the border to a schema of other people's, with an invalid type or reference
        return ""
    if error is None:
        return ""
    place = "".join(f"[{step!r}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    where = f" at {place.removeprefix('.')}" if place else ""
    return f"The arguments are wrong{where}: {error.message[:LONGEST_FAULT]}."
