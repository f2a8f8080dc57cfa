"""qwen3_coder: calls in tags, `<tool_call><function=f><parameter=x>...</parameter></function></tool_call>`.

Qwen3-Coder and Qwen3.5 write it. A parameter's value is text; it is parsed as JSON where the tool's schema asks for another type.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dagrpo.chat.tool_calls import Attempt, CallSyntax, Schemas
from dagrpo.chat.tool_calls.json_text import Unreadable, json_at, spelled_json
from dagrpo.chat.tool_calls.marked import Body, Broken, marked_calls

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>\n?")
_PARAMETER_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))")
_FUNCTION_END = re.compile(r"\s*</function>")


def read(text: str, schemas: Schemas) -> Iterator[Attempt]:
    """Yield one attempt per <tool_call>."""
    return marked_calls(text, OPENING, CLOSING, partial(_body, schemas=schemas))


def spell(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Write calls as Qwen3-Coder's template does."""
    return "\n".join(_spelled(name, arguments) for name, arguments in calls)


def _spelled(name: str, arguments: Mapping[str, Any]) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else spelled_json(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"{OPENING}\n<function={name}>\n{parameters}</function>\n{CLOSING}"


def _body(text: str, start: int, schemas: Schemas) -> Body:
    function = _FUNCTION.match(text, start)
    if function is None:
        raise Broken("undecodable", "A call begins with <function=name>.")
    name = function[1].strip()
    if not name:
        raise Broken("missing_name", "The call has no name in <function=name>.")
    properties = schemas.get(name, {}).get("properties") or {}
    arguments: dict[str, Any] = {}
    end = function.end()
    while parameter := _PARAMETER.match(text, end):
        first = text.find("</parameter>", parameter.end())  # which is much faster than a search in vain
        close = _PARAMETER_END.search(text, max(parameter.end(), first - 1)) if first >= 0 else None
        if close is None:
            raise Broken("undecodable", f"The parameter {parameter[1][:100]} is not closed with </parameter>.", name)
        value = text[parameter.end() : close.start()]
        arguments[parameter[1]] = _typed(value, properties.get(parameter[1], {}))
        end = close.end()
    close = _FUNCTION_END.match(text, end)
    if close is None:
        raise Broken("undecodable", "After the parameters comes something else than </function>.", name)
    return Body(name=name, arguments=arguments, end=close.end())


def _typed(value: str, schema: Mapping[str, Any]) -> Any:
    """Return the value parsed as JSON, or as text where the schema takes text or the value is invalid JSON.

    The schema check then reports what is wrong with that text.
    """
    if not schema or schema.get("type") == "string" or "enum" in schema:
        return value
    try:
        typed, end = json_at(value, 0)
    except Unreadable:
        return value
    return value if value[end:].strip() else typed


CALLS = CallSyntax(openings=(OPENING,), closings=(CLOSING,), read=read, spell=spell)
