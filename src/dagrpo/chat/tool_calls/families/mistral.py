"""mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}`.

The second form dates from 2025 and has one marker per call.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dagrpo.chat.tool_calls import Attempt, CallSyntax, Schemas
from dagrpo.chat.tool_calls.reading import after_spaces, listed_calls, opened_calls, spelled_json

OPENING, ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
_NAMED = re.compile(r"\s*([\w.-]{1,200})\[ARGS\]")
_BETWEEN = re.compile(r"\s*,\s*")
_CLOSE = re.compile(r"\s*\]")


def read(text: str, schemas: Schemas) -> Iterator[Attempt]:
    """Yield the calls after each [TOOL_CALLS]."""
    return opened_calls(text, OPENING, 0, _calls)


def spell(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Write calls as one list."""
    if not calls:
        return ""
    listed = ", ".join(spelled_json({"name": name, "arguments": arguments}) for name, arguments in calls)
    return f"{OPENING} [{listed}]"


def _calls(text: str, start: int) -> list[Attempt]:
    begin = after_spaces(text, start + len(OPENING))
    if head := _NAMED.match(text, start + len(OPENING)):
        return list(listed_calls(text, start, head.end(), OPENING, name=head[1]))
    if not text.startswith("[", begin) or text.startswith(OPENING, begin):
        return list(listed_calls(text, start, begin, OPENING))
    first = after_spaces(text, begin + 1)
    if text.startswith("]", first):
        return [Attempt(start=start, end=first + 1, status="undecodable", fault="The list of calls is empty.")]
    attempts = list(listed_calls(text, start, first, OPENING, _BETWEEN))
    return [*attempts[:-1], _closed(text, attempts[-1])]


def _closed(text: str, last: Attempt) -> Attempt:
    """Return the last call of a list, extended to the bracket that closes the list."""
    if close := _CLOSE.match(text, last.end):
        return replace(last, end=close.end())
    if last.status != "ok":
        return last
    return replace(last, status="unclosed", fault="The list of calls is not closed with ].")


CALLS = CallSyntax(openings=(OPENING,), closings=(ARGUMENTS,), read=read, spell=spell)
