"""qwen3_coder: calls in tags, `<tool_call><function=f><parameter=x>...</parameter></function></tool_call>`.

Qwen3-Coder and Qwen3.5 write it. A parameter's value is text; it is parsed where the tool's schema takes no text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dagrpo.chat.tool_calls import Attempt, CallSyntax, Schemas
from dagrpo.chat.tool_calls.checks import fault_of
from dagrpo.chat.tool_calls.reading import Body, Broken, json_at, marked_calls, spelled_json

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_WORDS = {"True": True, "False": False, "None": None}
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
    schema = schemas.get(name, {})
    arguments: dict[str, Any] = {}
    end = function.end()
    while parameter := _PARAMETER.match(text, end):
        first = text.find("</parameter>", parameter.end())  # which is much faster than a search in vain
        close = _PARAMETER_END.search(text, max(parameter.end(), first - 1)) if first >= 0 else None
        if close is None:
            raise Broken("undecodable", f"The parameter {parameter[1][:100]} is not closed with </parameter>.", name)
        value = text[parameter.end() : close.start()]
        if "<parameter=" in value:  # of the next one: this one's end is missing
            raise Broken("undecodable", f"The parameter {parameter[1][:100]} is not closed with </parameter>.", name)
        if parameter[1] in arguments:  # which also bounds the checks to the schema's own parameters
            raise Broken("undecodable", f"The parameter {parameter[1][:100]} is there twice.", name)
        arguments[parameter[1]] = typed(value, parameter[1], schema)
        end = close.end()
    close = _FUNCTION_END.match(text, end)
    if close is None:
        raise Broken("undecodable", "After the parameters comes something else than </function>.", name)
    return name, arguments, close.end()


def typed(value: str, name: str, schema: Mapping[str, Any]) -> Any:
    """Return null where the tool's schema takes it, else the text where it takes that, else the parsed value.

    The template writes true, false and null as Python does. The schema check then reports a value that fits in no form.
    """
    properties = schema.get("properties")  # of a program's or a server's schema, which may be invalid
    wanted = properties.get(name) if isinstance(properties, dict) else None
    if not isinstance(wanted, dict) or not wanted or wanted.get("type") == "string":
        return value
    parsed = _parsed(value)
    one = {**schema, "properties": {name: wanted}, "required": []}  # with the definitions that a `$ref` names
    readings = [*([None] if parsed is None else []), value, parsed]
    return next((each for each in readings if not fault_of({name: each}, one)), parsed)


def _parsed(value: str) -> Any:
    """Return the value as JSON or in Python's spelling of its three words; the text where it is neither."""
    if (word := value.strip()) in _WORDS:
        return _WORDS[word]
    try:
        parsed, end = json_at(value, 0)
    except Broken:
        return value
    return value if value[end:].strip() else parsed


CALLS = CallSyntax(openings=(OPENING,), closings=(CLOSING,), read=read, spell=spell)
