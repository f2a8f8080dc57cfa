"""hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Qwen2.5, Qwen3, SmolLM2 and the models that dagrpo creates write it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dagrpo.chat.tool_calls import Attempt, CallSyntax, Schemas
from dagrpo.chat.tool_calls.reading import json_call, marked_calls, spelled_json

OPENING, CLOSING = "<tool_call>", "</tool_call>"


def read(text: str, schemas: Schemas) -> Iterator[Attempt]:
    """Yield one attempt per <tool_call>."""
    return marked_calls(text, OPENING, CLOSING, json_call)


def spell(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Write calls as Qwen's template does."""
    return "\n".join(
        f"{OPENING}\n{spelled_json({'name': name, 'arguments': arguments})}\n{CLOSING}" for name, arguments in calls
    )


CALLS = CallSyntax(openings=(OPENING,), closings=(CLOSING,), read=read, spell=spell)
