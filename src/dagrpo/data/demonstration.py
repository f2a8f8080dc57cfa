"""Demonstrations as JSON text of OpenAI chat messages, in a column.

Messages with calls have no schema that a column could have: a call's arguments are as free as its tool likes.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dagrpo.core.errors import UserError

ROLES = ("assistant", "tool", "user")


def demonstration_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the column's text; `[]` for none."""
    return json.dumps([dict(message) for message in messages], ensure_ascii=False)


def demonstration_of(text: str, where: str) -> tuple[dict[str, Any], ...]:
    """Return the messages in a column's text. Raises UserError, which names `where`, if they are not valid."""
    if text == "[]":
        return ()
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"{where} is not JSON: run the prepare stage again.") from None
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        raise UserError(f"{where} is not a list of messages of {', '.join(ROLES)}: run the prepare stage again.")
    _require_turns([message["role"] for message in messages], where)
    return tuple(messages)


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in ROLES and isinstance(message.get("content"), str)


def _require_turns(roles: Sequence[str], where: str) -> None:
    """Check that the policy has the first and the last message, and an answer between any two. Raises UserError."""
    twice = any(one == other == "assistant" for one, other in itertools.pairwise(roles))
    if not roles or roles[0] != "assistant" or roles[-1] != "assistant" or twice:
        raise UserError(
            f"{where} has the roles {', '.join(roles)}: it must begin and end with an assistant's message, and have an "
            "answer between two of them."
        )


def call_message(function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an assistant's message that only calls one function."""
    call = {"type": "function", "function": {"name": function, "arguments": dict(arguments)}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def result_message(text: str) -> dict[str, Any]:
    """Return a message with a tool's result."""
    return {"role": "tool", "content": text}


def answer_message(text: str) -> dict[str, Any]:
    """Return an assistant's message without a call."""
    return {"role": "assistant", "content": text}
