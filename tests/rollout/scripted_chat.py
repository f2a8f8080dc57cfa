"""A chat format for tests: a token is a character, a call is written `@name{...}`, and nothing needs a tokenizer."""

import json
import re
from collections.abc import Sequence
from typing import Any

from dagrpo.chat.renderers import Message, ParsedAnswer, ParsedCall, ToolSchema

END = "\x03"
PICTURE = "\x04"  # one for each token that a picture takes
CALL = re.compile(r"@(\w*)(\{[^@]*\})?")


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def text_of(token_ids: Sequence[int]) -> str:
    return "".join(map(chr, token_ids))


class ScriptedChat:
    """`rewrites` makes it a template that changes the past at a user's turn, as those do that drop thinking."""

    def __init__(self, *, rewrites: bool = False) -> None:
        self.rewrites = rewrites

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, tuple[int, ...]]:
        return (text := _rendered(messages)), ids(text)

    def extension(
        self, prompt: Sequence[int], completion: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[int, ...] | None:
        if self.rewrites and any(message["role"] == "user" for message in new):
            return None
        end = "" if completion and completion[-1] == ord(END) else END
        return ids(end + _rendered(new))

    def parse(self, prompt: Sequence[int], completion: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedAnswer:
        text = self.text(completion)
        calls = tuple(_call(match) for match in CALL.finditer(text)) if tools else ()
        return ParsedAnswer(content=CALL.sub("", text) if tools else text, calls=calls)

    def text(self, completion: Sequence[int]) -> str:
        return text_of(completion).replace(END, "")

    def message(self, answer: ParsedAnswer) -> Message:
        calls = [
            {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in answer.calls
        ]
        return {"role": "assistant", "content": answer.content} | ({"tool_calls": calls} if calls else {})

    def spelled(self, message: Message) -> str:
        return str(message["content"])

    def require_tool_results(self, tools: Sequence[ToolSchema]) -> None:
        """It shows them."""


def _rendered(messages: Sequence[Message]) -> str:
    return "".join(f"<{each['role']}>{_said(each['content'])}{END}" for each in messages) + "<assistant>"


def _said(content: Any) -> str:
    """A text, or parts of which some are pictures."""
    return content if isinstance(content, str) else "".join(part.get("text", PICTURE) for part in content)


def _call(match: re.Match[str]) -> ParsedCall:
    raw, span = match.group(0), (match.start(), match.end())
    if not match.group(1):
        return ParsedCall(name="", arguments={}, status="missing_name", fault="It has no name.", raw=raw, span=span)
    try:
        arguments: dict[str, Any] = json.loads(match.group(2) or "{}")
    except ValueError:
        return ParsedCall(name="", arguments={}, status="undecodable", fault="It is no JSON.", raw=raw, span=span)
    return ParsedCall(name=match.group(1), arguments=arguments, status="ok", raw=raw, span=span)
