"""llama3: `{"name": ..., "parameters": {...}}` after <|python_tag|>, or alone.

Without the marker an answer begins with its calls, which `;`, `,` or white space separates, as SGLang reads them. What begins as a
call, other keys first or in Python's quotes, is an attempt.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dagrpo.chat.tool_calls import Attempt, CallSyntax, Schemas
from dagrpo.chat.tool_calls.reading import listed_calls, opened_calls, spelled_json

OPENING = "<|python_tag|>"
_BEGIN = r"""\{\s*+["'](?:name["']\s*+:|type["']\s*+:\s*+["']function["']|(?:parameters|arguments|function)["']\s*+:\s*+\{)"""
_BARE = re.compile(rf"\s*+(?={_BEGIN})")
_BETWEEN = re.compile(rf"\s*+(?:;\s*+(?=\{{)|,?+\s*+(?={_BEGIN}))")


def read(text: str, schemas: Schemas) -> Iterator[Attempt]:
    """Yield the calls after each <|python_tag|>, and those that the text begins with."""
    bare, end = _BARE.match(text), 0
    if bare is not None:
        for attempt in listed_calls(text, bare.end(), bare.end(), OPENING, _BETWEEN):
            yield attempt
            end = attempt.end
    yield from opened_calls(text, OPENING, end, _calls)


def spell(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Write calls without the marker, as Llama 3's template does."""
    return ";".join(spelled_json({"name": name, "parameters": arguments}) for name, arguments in calls)


def _calls(text: str, start: int) -> Iterator[Attempt]:
    return listed_calls(text, start, start + len(OPENING), OPENING, _BETWEEN)


CALLS = CallSyntax(openings=(OPENING,), read=read, spell=spell)
