"""Tool calls in a completion: every opening marker is one attempted call.

Each family of models has a small file in families/ for its syntax. Malformed calls are recorded as such: nothing here raises
over a completion. chat/formats handles tokens and thinking, rollout/tool_runtime runs the tools. SGLang's own parsers
(`sglang.srt.function_call`) read well-formed calls alike, but lose malformed ones.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MOST_CALLS = 64
"""Calls of one turn that are read; those after them are refused unread, which bounds the time that a turn can take."""

Status = Literal["ok", "undecodable", "unclosed", "missing_name", "unknown_tool", "wrong_arguments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Attempted call in a text, from its opening marker to the end of its closing one."""

    start: int  # the first character
    end: int  # one past the last
    name: str = ""
    arguments: Mapping[str, Any] | None = None  # None: none could be read
    status: Status = "ok"
    fault: str = ""  # what is wrong, a sentence for the policy


Schemas = Mapping[str, Mapping[str, Any]]  # of the arguments, by the tool's name


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """Call syntax of one family of models."""

    openings: tuple[str, ...]  # the markers that begin a call, or a list of calls
    read: Callable[[str, Schemas], Iterable[Attempt]]  # text, tools -> its attempts, in order, none within another
    spell: Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]  # names and arguments -> the text of the calls
    closings: tuple[str, ...] = ()  # the markers that end one


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """Return the JSON schema of each tool's arguments, from OpenAI function schemas."""
    functions = [tool["function"] for tool in tools]
    return {function["name"]: function.get("parameters") or {} for function in functions}


def attempts_in(text: str, syntax: CallSyntax, tools: Sequence[Mapping[str, Any]]) -> list[Attempt]:
    """Return all attempted calls in a text, with a status for unknown tools and for arguments that break their tool's schema."""
    from dagrpo.chat.tool_calls.checks import checked

    schemas = schemas_of(tools)
    return [checked(attempt, schemas) for attempt in syntax.read(text, schemas)]


def call_id(position: int) -> str:
    """Return the id of a turn's call by its position: nine letters and digits, as Mistral's template demands."""
    return f"call{position:05d}"
